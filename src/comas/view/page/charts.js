// Curves over steps as pictures: a click or Enter on a step opens its discussions.

const WIDE = 560, HIGH = 200, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 24;

function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size / 1e6; at += size) found.push(at);
  return found;
}

// series: [{name, points: [[x, y, low, high]], dashed, folder}], x being the number of a step from 1;
// levels: heights with a line of their own; open(step, series): the one nearest to the pointer.
function chart({ title, says, unit = "", series, marks = [], levels = [], range, open }) {
  const full = series.filter((one) => one.points.length);
  if (!full.length) return null;
  const points = full.flatMap((one) => one.points);
  const values = [...levels, ...points.flatMap(([, y, low, high]) => [y, low ?? y, high ?? y])];
  const [low, high] = range || padded(Math.min(...values), Math.max(...values));
  const first = Math.min(...points.map(([x]) => x));
  const last = Math.max(first + 1, ...points.map(([x]) => x));
  const across = (x) => LEFT + ((x - first) / (last - first)) * (WIDE - LEFT - RIGHT);
  const down = (y) => TOP + (1 - (y - low) / (high - low)) * (HIGH - TOP - BOTTOM);
  const xs = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  let at = -1;

  function show(index) {
    at = Math.max(0, Math.min(xs.length - 1, index));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(xs[at]));
    const told = full.map((one) => [one.name, one.points.find(([x]) => x === xs[at])])
      .filter(([, point]) => point).map(([name, [, y]]) => `${name} ${number(y, unit)}`);
    const noted = marks.filter(([x]) => x === xs[at]).map(([, text]) => text);
    readout.textContent = visible([`step ${xs[at]}: ${told.join(", ")}`, ...noted].join("; "));
  }
  function nearest(event) {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDE;
    const distances = xs.map((step) => Math.abs(across(step) - x));
    return distances.indexOf(Math.min(...distances));
  }
  function openAt(index, event) {
    const box = picture.getBoundingClientRect();
    const height = event ? ((event.clientY - box.top) / box.height) * HIGH : TOP;
    const there = full.map((one) => [one, one.points.find(([x]) => x === xs[index])])
      .filter(([, point]) => point)
      .map(([one, [, y]]) => [Math.abs(down(y) - height), one]);
    const [, found] = there.reduce((best, other) => (other[0] < best[0] ? other : best));
    open(xs[index], found);
  }
  function key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (event.key in moves) show((at < 0 ? 0 : at) + moves[event.key]);
    else if (event.key === "Enter" && open && at >= 0) openAt(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  const ends = full.map((one) => `${one.name} from ${number(one.points[0][1], unit)} to `
    + number(one.points.at(-1)[1], unit)).join(", ");
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: 0, keydown: key,
    "aria-label": `${title}: ${ends}. Arrow keys move along the steps, Enter opens one.`,
    pointermove: (event) => show(nearest(event)), click: (event) => open && openAt(nearest(event), event),
  },
  ticks(low, high).map((y) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: down(y), y2: down(y) }),
    svg("text", { x: LEFT - 6, y: down(y) + 4, "text-anchor": "end" }, short(y))]),
  ticks(first, last).filter(Number.isInteger).map((x) =>
    svg("text", { x: across(x), y: HIGH - 8, "text-anchor": "middle" }, String(x))),
  levels.map((y) => svg("line", {
    class: "level", x1: LEFT, x2: WIDE - RIGHT, y1: down(y), y2: down(y) })),
  full.map((one) => curve(one, series.indexOf(one), across, down)),
  marks.map(([x, text]) => svg("path", {
    class: "mark", d: `M${across(x)} ${HIGH - BOTTOM - 8}l5 8h-10z` }, svg("title", {}, text))),
  cursor);
  return h("figure", {}, h("figcaption", {}, h("strong", {}, title), says && h("span", {}, says)),
    picture, legend(series, full), readout, numbers(title, full, xs, unit));
}

function padded(low, high) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low < room * 3 ? 0 : low - room, high + room];
}

const short = (y) => (Math.abs(y) >= 1e4 ? `${y / 1000}k` : String(Number(y.toPrecision(3))));

function curve(one, index, across, down) {
  const line = one.points.map(([x, y]) => `${across(x)},${down(y)}`).join(" ");
  const banded = one.points.filter(([, , low]) => low !== undefined && low !== null);
  const classes = `series s${index % 8}` + (one.dashed ? " dashed" : "");
  const bars = one.points.length < 40;
  return svg("g", { class: classes },
    svg("title", {}, one.name),
    svg("polyline", { points: line }),
    banded.map(([x, , low, high]) =>
      svg("line", { class: "bar", x1: across(x), x2: across(x), y1: down(low), y2: down(high) })),
    bars && one.points.map(([x, y]) => svg("circle", { cx: across(x), cy: down(y), r: 2.5 })));
}

function legend(series, full) {
  return h("ul", { class: "legend" }, full.map((one) =>
    h("li", { class: `s${series.indexOf(one) % 8}` + (one.dashed ? " dashed" : "") }, one.name)));
}

function numbers(title, full, xs, unit) {
  const details = h("details", {}, h("summary", {}, "numbers"));
  details.addEventListener("toggle", () => {
    const found = full.map((one) => new Map(one.points.map(([x, y]) => [x, y])));
    const rows = xs.map((x) => [String(x), ...found.map((points) => number(points.get(x)))]);
    const names = full.map((one) => (unit ? `${one.name}, ${unit}` : one.name));
    details.append(table(["step", ...names], rows, title));
  }, { once: true });
  return details;
}

// Intervals one below the other: [{name, mean, low, high, to}].
function intervals(title, rows, range) {
  const ends = rows.flatMap((row) => [row.low ?? row.mean, row.high ?? row.mean]);
  const [low, high] = range || padded(Math.min(0, ...ends), Math.max(0, ...ends));
  const across = (x) => 8 + ((x - low) / (high - low)) * 284;
  const picture = (row) => svg("svg", {
    viewBox: "0 0 300 16", class: "interval", role: "img", "aria-label": interval(row) },
  svg("line", { class: "grid", x1: across(0), x2: across(0), y1: 0, y2: 16 }),
  svg("line", { class: "bar", x1: across(row.low ?? row.mean), x2: across(row.high ?? row.mean), y1: 8, y2: 8 }),
  svg("circle", { cx: across(row.mean), cy: 8, r: 4 }));
  const lines = rows.map((row) =>
    [row.to ? link(row.to, row.name) : row.name, picture(row), interval(row), ...(row.more || [])]);
  return table(["", `from ${short(low)} to ${short(high)}`, "mean, 95 % interval", ""], lines, title);
}
