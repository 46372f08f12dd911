// Discussions of a step, of a kind, of a question: lists, and two of them side by side.

function rowOf(row, to, more = "") {
  const rewards = {};
  for (const [role, reward] of row.rewards) (rewards[role] ||= []).push(signed(reward));
  return h("li", {}, h("a", { href: "#/" + to },
    more && h("span", { class: "when" }, more), h("span", { class: "asked", dir: "auto" }, row.question),
    h("span", { class: "answered", dir: "auto" }, row.answer)),
  h("span", { class: "rewards" }, Object.entries(rewards).map(([role, some]) => `${role} ${some.join(" ")}`).join(", ")),
  row.verdict && h("span", { class: `label ${row.verdict}` }, row.verdict),
  row.kinds.map((kind) => h("span", { class: "label bad" }, kind)));
}

async function stepPage(folder, step) {
  const at = step - 1;
  const about = folder.steps[at];
  if (!about) throw new Error(`there is no step ${step}: there are ${folder.steps.length}`);
  const turned = (by) => hasStep(folder, at + by)
    && link(path(folder.number, "step", step + by), by < 0 ? "← earlier" : "later →");
  const head = [h("h1", {}, `Step ${step}`),
    h("p", { class: "turning" }, turned(-1), " ", turned(1)), figuresOfStep(about)];
  if (!hasStep(folder, at)) {
    return [head, h("p", {}, "Its discussions are not in this file. Steps that are: ",
      folder.steps.filter((one) => hasStep(folder, one.step)).map((one) =>
        [link(path(folder.number, "step", one.step + 1), String(one.step + 1)), " "]))];
  }
  const rows = await read(`${folder.number}/step/${at}`);
  return [head, filtered(folder, rows, (row) =>
    rowOf(row, path(folder.number, "step", step, row.number)))];
}

function figuresOfStep(step) {
  const cells = Object.keys(step.rewards || {}).map((role) => [role, number(step.rewards[role]),
    number((step.kl || {})[role]), number((step.lengths || {})[role]),
    number(summed(step.cost, "role", (row) => row.tokens)[role])]);
  return [table(["role", "mean reward", "KL, nats per token", "tokens per reply", "tokens"], cells),
    (step.notes || []).map((note) => h("p", { class: "note" }, note))];
}

// A list that can be narrowed to kinds and words at once.
function filtered(folder, rows, item) {
  const list = h("ol", { class: "rows" });
  const count = h("p", { role: "status" });
  let kind = "";
  let words = "";
  function show() {
    const found = rows.filter((row) => (!kind || row.kinds.includes(kind))
      && (!words || (row.question + row.answer + row.id).toLowerCase().includes(words)));
    const means = kind ? `, with ${folder.facts.kinds[kind]}` : "";
    count.textContent = `${found.length} of ${rows.length} discussions${means}`;
    portions(found, item, list, 200);
  }
  const kinds = Object.keys(folder.facts.kinds).map((name) => [name, name]);
  show();
  return [h("p", { class: "filters" },
    choice("only", [["", "everything"], ...kinds], "", (value) => { kind = value; show(); }),
    h("label", {}, " with ", h("input", { type: "search", "aria-label": "words",
      input: (event) => { words = event.target.value.toLowerCase(); show(); } }))), count, list];
}

async function discussionPage(folder, step, place) {
  const at = step - 1;
  const one = await read(`${folder.number}/step/${at}/${place}`);
  const count = (await read(`${folder.number}/step/${at}`)).length;
  const beside = (by) => place + by >= 0 && place + by < count
    && link(path(folder.number, "step", step, place + by), by < 0 ? "← before" : "next →");
  return [h("p", { class: "turning" }, link(path(folder.number, "step", step), `step ${step}`), " ",
    beside(-1), " ", beside(1), " ", link(path("question", one.question.id), "this question elsewhere")),
  board(one, folder.facts.rewarded_for)];
}

// Looks through the steps, one after the other, until enough is found.
function hunt(label, accepts, item, most = 100) {
  const list = h("ol", { class: "rows" });
  const state = h("p", { role: "status" });
  const started = location.hash;
  (async () => {
    let found = 0;
    for (const folder of runs()) {
      for (const step of folder.steps.filter((one) => hasStep(folder, one.step))) {
        if (location.hash !== started || found >= most) break;
        state.textContent = `${label}: ${found} found, looking at step ${step.step + 1}`;
        const hits = (await read(`${folder.number}/step/${step.step}`)).filter(accepts);
        found += hits.length;
        list.append(...hits.map((row) => item(row, folder, step.step + 1)));
      }
    }
    state.textContent = `${label}: ${found}${found >= most ? " and perhaps more" : ""} found`;
  })();
  return [state, list];
}

const hit = (row, folder, step) => rowOf(row, path(folder.number, "step", step, row.number),
  tagged(folder, `step ${step}`));

function findPage(kind, words) {
  const kinds = Object.entries(folders[0].facts.kinds);
  const means = Object.fromEntries(kinds)[kind];
  const to = (newKind, newWords) => { location.hash = `#/${path("find", newKind, newWords)}`; };
  const wanted = words.toLowerCase();
  return [h("h1", {}, "Find discussions"), h("p", { class: "filters" },
    choice("only", [["any", "everything"], ...kinds.map(([name]) => [name, name])],
      kind, (value) => to(value, words)),
    h("label", {}, " with ", h("input", { type: "search", value: words, "aria-label": "words",
      change: (event) => to(kind, event.target.value) }))),
  hunt(means ? `discussions with ${means}` : "discussions", (row) => (kind === "any" || row.kinds.includes(kind))
    && (!wanted || (row.question + row.answer + row.id).toLowerCase().includes(wanted)), hit)];
}

// The same question wherever it was asked; two of the discussions side by side.
function questionPage(id) {
  const beside = h("div", { class: "beside" });
  async function put(folder, step, place) {
    const one = await read(`${folder.number}/step/${step - 1}/${place}`);
    if (beside.children.length > 1) beside.firstChild.remove();
    beside.append(h("div", {}, h("h2", {}, tagged(folder, `step ${step}`)), board(one, folder.facts.rewarded_for)));
  }
  const item = (row, folder, step) => {
    const line = hit(row, folder, step);
    line.prepend(h("button", { click: () => put(folder, step, row.number) }, "show beside"));
    return line;
  };
  return [h("h1", {}, "One question"), h("p", {}, h("code", {}, id)), beside,
    hunt("discussions of it", (row) => row.id === id, item)];
}
