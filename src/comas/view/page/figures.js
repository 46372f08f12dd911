// The overview of runs: curves of what was recorded at each step.

const runs = () => folders.filter((folder) => folder.facts.kind === "run");
const tagged = (folder, name) => (runs().length > 1 ? `${folder.facts.name}: ${name}` : name);

// One series per name that `values(step)` has (name -> number or {mean, low, high}).
function seriesOf(values, chosen = runs()) {
  const found = new Map();
  for (const folder of chosen) {
    for (const step of folder.steps) {
      for (const [name, value] of Object.entries(values(step) || {})) {
        if (value === null || value === undefined) continue;
        const key = tagged(folder, name);
        if (!found.has(key)) {
          found.set(key, { name: key, points: [], dashed: folder.number > 0, folder: folder.number });
        }
        const [y, low, high] = typeof value === "object" ? [value.mean, value.low, value.high] : [value];
        found.get(key).points.push([step.step + 1, y, low, high]);
      }
    }
  }
  return [...found.values()];
}

function notesOf(chosen = runs()) {
  return chosen.flatMap((folder) => folder.steps.filter((step) => step.notes && step.notes.length)
    .map((step) => [step.step + 1, step.notes.join("; ")]));
}

function summed(rows, key, value) {
  const found = {};
  for (const row of rows || []) found[row[key]] = (found[row[key]] || 0) + value(row);
  return found;
}

function shares(rows, of) {
  const turns = summed(rows, "role", (row) => row.turns);
  const some = summed(rows, "role", (row) => row[of] || 0);
  return Object.fromEntries(Object.keys(turns).map((role) => [role, some[role] / turns[role]]));
}

const pick = (table, ...names) => Object.fromEntries(
  Object.entries(table || {}).flatMap(([role, row]) => names.map((name) =>
    [`${role}: ${name.replaceAll("_", " ")}`, row[name]])));

// Judges by the area under their curve where they are weighed: what they accept depends on a bound then.
const ofJudges = (step, ...names) => Object.assign({}, ...Object.entries(step.judges || {}).map(([role, row]) =>
  (row.auc === undefined ? pick({ [role]: row }, ...names) : { [`${role}: AUC`]: row.auc })));

const ACCURACY = "Accuracy on questions that are not trained on";
const FLAT = "Groups without a difference";
const CHARTS = [
  [ACCURACY, "single answers; 95 % intervals", "share right", [0, 1],
    (step) => ({ mean: step.validation, ...step.validation_by_agent })],
  ["Rewards", "mean over rewarded turns, by role", "reward", null, (step) => step.rewards],
  ["Judges against labels", "how often they accept right and wrong work: these ought to lie apart; AUC of P(True): .5 is chance",
    "share", [0, 1], (step) => ofJudges(step, "accepts_right", "accepts_wrong")],
  [FLAT, "rewards that are all equal: nothing can be learnt from these rows", "share of groups", [0, 1],
    (step) => Object.fromEntries(Object.entries(step.signal || {})
      .map(([role, { groups, flat }]) => [role, groups ? flat / groups : null]))],
  ["Generated tokens by role", "of each step", "tokens", null,
    (step) => summed(step.cost, "role", (row) => row.tokens)],
  ["KL", "mean log(policy / reference) per token", "nats", null, (step) => step.kl],
  // those above matter most, and are never folded
  ["Rewards against labels", "of rewarded solutions the share that is right; of right ones the share rewarded", "share",
    [0, 1], (step) => step.pay && { accuracy: step.pay.accuracy, precision: step.pay.precision,
      recall: step.pay.recall }],
  ["Different answers to one question", "where it was answered more than once: works that are one cannot be compared", "answers", null,
    (step) => { const variety = step.variety || step.coverage;  // of runs before 0.2
      return variety && variety.distinct !== undefined && { distinct: variety.distinct }; }],
  ["Entropy", "mean per sampled token of the policies that learn", "nats", null,
    (step) => step.variety && step.variety.entropy !== undefined && { entropy: step.variety.entropy }],
  ["Replies that cannot be read", "by role", "share of replies", [0, 1],
    (step) => shares(step.replies, "unreadable")],
  ["Replies cut at the token limit", "by role", "share of replies", [0, 1],
    (step) => shares(step.replies, "cut")],
  ["Length of replies", "by role", "tokens", null, (step) => step.lengths],
  ["Generated tokens by agent", "of each step", "tokens", null,
    (step) => summed(step.cost, "agent", (row) => row.tokens)],
  ["Posed questions", "", "share of proposals", [0, 1], (step) => step.posed && {
    valid: step.posed.valid, solvable: step.posed.solvable, "at the frontier": step.posed.frontier }],
  ["Time of a step", "", "seconds", null, (step) => ({ step: step.seconds })],
];
const LEADING = 6;

// Held-out accuracy before and after, where the steps end.
function measuredSeries(folder) {
  const points = Object.entries(folder.facts.measured).filter(([, found]) => found && found.accuracy)
    .map(([, { step, accuracy }]) => [step, accuracy.mean, accuracy.low, accuracy.high]);
  return { name: tagged(folder, "held out"), points, dashed: folder.number > 0, folder: folder.number };
}

const openStep = (step, { folder }) => {
  location.hash = `#/${path(folder, "step", Math.max(1, step))}`;
};

// Whether hardly any group has a difference to learn from, which explains all other curves.
function isFlat() {
  const rows = runs().flatMap((folder) => folder.steps.flatMap((step) => Object.values(step.signal || {})));
  const total = (key) => rows.reduce((sum, row) => sum + row[key], 0);
  return total("groups") > 0 && total("flat") >= 0.9 * total("groups");
}

function overview() {
  const panels = CHARTS.map(([title, says, axis, range, values], at) => {
    const series = [...seriesOf(values), ...(title === ACCURACY ? runs().map(measuredSeries) : [])];
    const drawn = chart({ title, says, axis, range, marks: notesOf(), open: openStep, series });
    return { title, drawn, still: at >= LEADING && hardlyMoves(series, range) };
  });
  const watched = evidence();
  const first = (one) => (isFlat() && one.title === FLAT ? 0 : 1);
  return [
    runs().map((folder) => [h("h1", {}, folder.facts.name), about(folder), notes(folder)]),
    shown(panels.sort((a, b) => first(a) - first(b)), "of what hardly moves"),
    watched.length > 0 && h("h2", {}, "What monitors see"),
    shown(watched, "without evidence of a change")];
}

// What a reader has unfolded, which stays so while a run goes on.
const unfolded = new Set();

// Panels, with those that are still folded below the others.
function shown(panels, says) {
  const full = panels.filter((one) => one.drawn);
  const still = full.filter((one) => one.still);
  const names = still.map((one) => one.title).join(", ");
  return [
    h("section", { class: "charts" }, full.filter((one) => !one.still).map((one) => one.drawn)),
    still.length > 0 && h("details", {
      class: "folded", open: unfolded.has(says),
      toggle: (event) => (event.target.open ? unfolded.add(says) : unfolded.delete(says)) },
    h("summary", {}, `${still.length === 1 ? "One picture" : `${still.length} pictures`} ${says}: ${names}`),
    h("section", { class: "charts" }, still.map((one) => one.drawn)))];
}

const ODDS = 1;  // evidence below ten to one is none

// A chart per monitor: a run may be watched for more hypotheses than there are colours.
function evidence() {
  const steps = runs().flatMap((folder) => folder.steps);
  const monitors = [...new Set(steps.flatMap((step) => Object.keys(step.evidence || {})))];
  return monitors.map((monitor) => {
    const own = steps.filter((step) => (step.evidence || {})[monitor] && step.needed !== null);
    const levels = [...new Set(own.map((step) => step.needed))];
    const alarm = levels.map((level) => `${number(level)} (${number(10 ** level)} to 1)`);
    const title = `Evidence of ${monitor}`;
    const series = seriesOf((step) => (step.evidence || {})[monitor]);
    const drawn = chart({
      title, levels, axis: "evidence, powers of ten", marks: notesOf(), open: openStep, series,
      says: alarm.map((one) => `an alarm from ${one} on`).join("; ") });
    const still = series.every(({ points }) => points.every(([, y]) => !(y >= ODDS)));
    return { title, drawn, still };
  });
}

function about(folder) {
  const { config, steps, planned, measured } = folder.facts;
  const tokens = folder.steps.length ? folder.steps.at(-1).tokens : 0;
  const agents = typeof config.agents === "number" ? config.agents : Object.keys(config.agents).length;
  const measures = Object.entries(measured).filter(([, found]) => found).map(([name, found]) => [
    link(path(folder.number, "eval", name), name), ` after ${found.step} steps: ${interval(found.accuracy)}`]);
  const still = Object.entries(folder.facts.moved || {}).filter(([, count]) => 2 * count < steps)
    .map(([policy, count]) => `${policy} moved in ${count} of ${number(steps, "steps")}`);
  return [
    h("p", {}, `${config.method} on ${config.task}, ${agents} agents, ${steps} of ${planned} steps, `
      + `${number(tokens, "generated tokens")}, seed ${config.seed}`),
    still.length > 0 && h("p", { class: "note" }, still.join("; ")),
    measures.length > 0 && h("ul", {}, measures.map((one) => h("li", {}, "held-out accuracy ", one))),
    h("details", {}, h("summary", {}, "config"), h("pre", {}, JSON.stringify(config, null, 1)))];
}

function notes(folder) {
  const steps = folder.steps.filter((step) => step.notes && step.notes.length);
  return steps.length > 0 && h("details", { open: steps.length < 3 },
    h("summary", {}, `warnings in ${steps.length === 1 ? "one step" : `${steps.length} steps`}`),
    h("ul", {}, steps.slice(0, 200).map((step) => h("li", {},
      link(path(folder.number, "step", step.step + 1), `step ${step.step + 1}`), ": ",
      step.notes.join("; ")))));
}
