// Measurements with their answers, judges against truth, and evaluations.

function groupedBy(rows, key) {
  const found = new Map();
  for (const row of rows) found.set(key(row), [...(found.get(key(row)) || []), row]);
  return found;
}

// A measurement of a run, beside the one before it where there is one.
async function measuredPage(folder, name) {
  const now = await read(`${folder.number}/eval/${name}`);
  const other = name !== "before" && "before" in folder.facts.measured ? "before" : null;
  const then = other && await read(`${folder.number}/eval/${other}`);
  const earlier = new Map((then ? then.answers : []).map((one) => [one.question + "\n" + one.agent, one]));
  const pairs = now.answers.map((one) => [one, earlier.get(one.question + "\n" + one.agent)]);
  const changed = ([one, old]) => (old && old.verdict !== one.verdict ? `${old.verdict} to ${one.verdict}` : "same");
  const share = (some) => ({ mean: some.filter((one) => one.verdict === "right").length / some.length });
  const agents = [...groupedBy(now.answers, (one) => one.agent)].map(([agent, some]) =>
    ({ name: agent, ...share(some) }));
  const rows = [{ name: "all agents", ...now.accuracy }, ...agents];
  if (then) rows.push({ name: other, ...then.accuracy });
  const list = h("div");
  const show = (kind) => portions(pairs.filter((pair) => !kind || changed(pair) === kind),
    ([one, old]) => h("article", { class: "answer" },
      h("header", {}, h("b", {}, one.agent), " ", one.question, " ",
        h("span", { class: `label ${one.verdict}` }, one.verdict)),
      h("div", { class: "beside" }, old && h("div", {}, h("h4", {}, `${other}: ${old.verdict}`), prose(old.text || "")),
        h("div", {}, old && h("h4", {}, `${name}: ${one.verdict}`), prose(one.text || "")))), list);
  show("");
  const kinds = [...groupedBy(pairs, changed)].map(([kind, some]) => [kind, `${kind} (${some.length})`]);
  return [h("h1", {}, `Accuracy ${name}`), intervals("right single answers", rows, [0, 1]),
    h("p", { class: "filters" }, choice("show", [["", "all answers"], ...kinds.sort()], "", show)), list];
}

// Judgements against labels, summed over a range of steps.
function truthPage(folder, from, to) {
  const steps = folder.steps.filter((one) => one.step + 1 >= from && one.step + 1 <= to);
  const rows = steps.flatMap((one) => one.acceptance || []);
  const go = (first, last) => { location.hash = `#/${path(folder.number, "truth", first, last)}`; };
  const bound = (label, value, change) => h("label", {}, ` ${label} `, h("input", {
    type: "number", min: 1, max: folder.steps.length, value, change: (event) => change(event.target.value) }));
  const range = h("p", { class: "filters" }, "judgements of steps ", bound("from", from, (v) => go(v, to)),
    bound("to", to, (v) => go(from, v)));
  const open = (step) => go(Math.max(1, step - 4), Math.min(folder.steps.length, step + 5));
  const curves = chart({ title: "Judges against labels", axis: "share", range: [0, 1], open, marks: notesOf([folder]),
    says: "a click chooses ten steps around it for the tables below",
    series: seriesOf((step) => ofJudges(step, "accepts_right", "accepts_wrong", "balanced"), [folder]) });
  const roles = [...groupedBy(rows, (row) => row.role)];
  const kinds = ["rewarded-but-wrong", "right-but-unrewarded", "misjudged", "unreadable"];
  return [h("h1", {}, "Judges against truth"), curves, range,
    rows.length === 0 && h("p", {}, "No judgement is recorded that can be read as acceptance or rejection."),
    roles.map(([role, some]) => [h("h2", {}, role), confusion(some), who(some)]),
    h("h2", {}, "Discussions"),
    steps.length <= 20 && h("p", {}, "of step ", steps.map((one) =>
      [link(path(folder.number, "step", one.step + 1), String(one.step + 1)), " "])),
    h("ul", {}, kinds.map((kind) => h("li", {},
      link(path("find", kind, ""), kind), ": ", folder.facts.kinds[kind])))];
}

const total = (rows, key) => rows.reduce((sum, row) => sum + row[key], 0);
const part = (some, all) => (all ? `${some} (${Math.round((100 * some) / all)} %)` : "–");

function confusion(rows) {
  const lines = ["right", "wrong"].map((label) => {
    const [all, accepted] = [total(rows, label), total(rows, `accepted_${label}`)];
    return [`${label} work`, part(accepted, all), part(all - accepted, all), String(all)];
  });
  return table(["", "accepted", "rejected", "judgements"], lines, "what judges say of right and of wrong work");
}

function who(rows) {
  const authors = [...new Set(rows.map((row) => row.author))].sort();
  const lines = [...groupedBy(rows, (row) => row.judge)].sort().map(([judge, some]) => [judge,
    ...authors.map((author) => {
      const own = some.filter((row) => row.author === author);
      return part(total(own, "accepted"), total(own, "n"));
    })]);
  return table(["judge", ...authors.map((name) => `work of ${name}`)], lines, "who accepts whose work");
}

// --- evaluations

function evaluationPage(folder) {
  const { report, files } = folder.facts;
  const head = [h("h1", {}, folder.facts.name), h("h2", {}, "Games"), h("ul", {}, files.map((file, at) =>
    h("li", {}, link(path(folder.number, "games", at), file))))];
  if (!report) return [h("p", {}, "This evaluation has no report yet."), head];
  const cells = report.cells.map((cell) => ({
    name: `${cell.label}, ${cell.task}, ${cell.setup}`, mean: cell.accuracy, low: cell.low, high: cell.high,
    more: [`${number(cell.n, "questions")}, ${number(cell.tokens, "tokens")}`] }));
  const named = (one) => `${one.second.label} ${one.second.setup} against ${one.first.label} ${one.first.setup}`;
  const differences = [...report.systems, ...report.setups].map((one) => ({
    name: `${one.task}: ${named(one)}`, mean: one.difference, low: one.low, high: one.high,
    more: [`${one.verdict}, p ${number(one.p)} (${one.test}, corrected)`] }));
  return [head[0], intervals("accuracy", cells.filter((cell) => cell.mean !== null), [0, 1]),
    differences.length > 0 && intervals("paired differences", differences.filter((one) => one.mean !== null)),
    (report.cross || []).map(crossed),
    report.notes.map((note) => h("p", { class: "note" }, note)), head.slice(1)];
}

function crossed(one) {
  const spanned = (cell) => `${number(cell.mean)} [${number(cell.low)}, ${number(cell.high)}]`;
  const lines = one.names.map((name, at) => [name, ...one.matrix[at].map(spanned), spanned(one.rows[at])]);
  lines.push(["all", ...one.columns.map(spanned), spanned(one.mean)]);
  return table(["row against column", ...one.names, "all"], lines,
    `cross-play on ${one.task}: payoff of the row, with 95 % intervals over ${one.n} games a cell`);
}

async function gamesPage(folder, log) {
  const rows = await read(`${folder.number}/games/${log}`);
  return [h("h1", {}, folder.facts.files[log]), filtered(folder, rows, (row) =>
    rowOf(row, path(folder.number, "games", log, row.number)))];
}

async function gamePage(folder, log, place) {
  const one = await read(`${folder.number}/games/${log}/${place}`);
  return [h("p", { class: "turning" }, link(path(folder.number, "games", log), folder.facts.files[log])),
    board(one, folder.facts.rewarded_for)];
}
