// Curves over steps as pictures: a click or Enter on a step opens its discussions.

const WIDE = 400, HIGH = 190, LEFT = 42, RIGHT = 10, TOP = 22, BOTTOM = 34;
const LEAST = 0.1;  // of what a figure may be, the least that is drawn: what hardly moves looks so

function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size / 1e6; at += size) found.push(at);
  return found;
}

// series: [{name, points: [[x, y, low, high]], dashed, folder}], x being the number of a step from 1;
// axis: title of the heights; levels: heights with a line of their own; range: the least and the most that
// a figure may be; open(step, series): the one nearest to the pointer.
function chart({ title, says, axis = "", series, marks = [], levels = [], range, open }) {
  const full = series.filter((one) => one.points.length);
  if (!full.length) return null;
  const points = full.flatMap((one) => one.points);
  const values = [...levels, ...points.flatMap(([, y, low, high]) => [y, low, high])].filter(Number.isFinite);
  const [low, high] = fitted(values.length ? values : [0, 1], range);
  const first = Math.min(...points.map(([x]) => x));
  const last = Math.max(first + 1, ...points.map(([x]) => x));
  const across = (x) => LEFT + ((x - first) / (last - first)) * (WIDE - LEFT - RIGHT);
  const down = (y) => TOP + (1 - (y - low) / (high - low)) * (HIGH - TOP - BOTTOM);
  const xs = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  const textAt = (step) => {
    const told = full.map((one) => [one.name, one.points.find(([x]) => x === step)])
      .filter(([, point]) => point).map(([name, [, y]]) => `${name} ${number(y)}`);
    const noted = marks.filter(([x]) => x === step).map(([, text]) => text);
    return visible([`step ${step}: ${told.join(", ")}`, ...noted].join("; "));
  };
  const readout = h("p", { class: "readout", "aria-live": "polite" }, textAt(xs.at(-1)));
  let at = -1;

  function show(index) {
    at = Math.max(0, Math.min(xs.length - 1, index));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(xs[at]));
    readout.textContent = textAt(xs[at]);
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
  const ends = full.map((one) => `${one.name} from ${number(one.points[0][1])} to `
    + number(one.points.at(-1)[1])).join(", ");
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: 0, keydown: key,
    "aria-label": `${title}${axis && ", "}${axis}: ${ends}. Arrow keys move along the steps, Enter opens one.`,
    pointermove: (event) => show(nearest(event)), click: (event) => open && openAt(nearest(event), event),
  },
  ticks(low, high).map((y) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: down(y), y2: down(y) }),
    svg("text", { x: LEFT - 6, y: down(y) + 4, "text-anchor": "end" }, short(y))]),
  ticks(first, last).filter(Number.isInteger).map((x) =>
    svg("text", { x: across(x), y: HIGH - BOTTOM + 14, "text-anchor": "middle" }, String(x))),
  svg("text", { class: "axis", x: 2, y: 12 }, axis),
  svg("text", { class: "axis", x: WIDE - RIGHT, y: HIGH - 4, "text-anchor": "end" }, "step"),
  levels.map((y) => svg("line", {
    class: "level", x1: LEFT, x2: WIDE - RIGHT, y1: down(y), y2: down(y) })),
  full.map((one) => curve(one, series.indexOf(one), across, down)),
  marks.map(([x, text]) => svg("path", {
    class: "mark", d: `M${across(x)} ${HIGH - BOTTOM - 8}l5 8h-10z` }, svg("title", {}, text))),
  cursor);
  return h("figure", {}, h("figcaption", {}, h("strong", {}, title), says && h("span", {}, says)),
    picture, legend(series, full), readout, numbers(title, full, xs));
}

function padded(low, high) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low < room * 3 ? 0 : low - room, high + room];
}

// Ends of an axis on which these values lie, within what they may be.
function fitted(values, range) {
  const [low, high] = padded(Math.min(...values), Math.max(...values));
  if (!range) return [low, high];
  const half = Math.max(high - low, LEAST * (range[1] - range[0])) / 2;
  const middle = (low + high) / 2;
  return [Math.max(range[0], Math.min(middle - half, range[1] - 2 * half)),
    Math.min(range[1], Math.max(middle + half, range[0] + 2 * half))];
}

// Whether each curve says little more than one number: it moves by less than a fiftieth of what it may be, or
// where that has no end, by less than a tenth of its height.
function hardlyMoves(series, range) {
  return series.every(({ points }) => {
    const values = points.map(([, y]) => y).filter(Number.isFinite);
    const size = range ? range[1] - range[0] : Math.max(...values.map(Math.abs));
    return values.length !== 1 && !(Math.max(...values) - Math.min(...values) > size / (range ? 50 : 10));
  });
}

const short = (y) => (Math.abs(y) >= 1e4 ? `${y / 1000}k` : String(Number(y.toPrecision(3))));

function curve(one, index, across, down) {
  const line = one.points.map(([x, y]) => `${across(x)},${down(y)}`).join(" ");
  const banded = one.points.filter(([, , low, high]) => Number.isFinite(low) && Number.isFinite(high));
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

function numbers(title, full, xs) {
  const details = h("details", {}, h("summary", {}, "numbers"));
  details.addEventListener("toggle", () => {
    const found = full.map((one) => new Map(one.points.map(([x, y]) => [x, y])));
    const rows = xs.map((x) => [String(x), ...found.map((points) => number(points.get(x)))]);
    details.append(table(["step", ...full.map((one) => one.name)], rows, title));
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
