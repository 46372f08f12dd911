// One discussion: columns are agents, rows are time, arrows say what a turn is about.

const NUMBERS = { reward: "", advantage: "", kl: "nats per token", logprob: "nats", tokens: "tokens",
  prompt_tokens: "tokens", seconds: "s", version: "updates", round: "", dropped: "pieces of history" };

function board(discussion, rewardedFor = {}) {
  const agents = [...new Set(discussion.turns.map((turn) => turn.agent))].sort();
  const cards = new Map();
  discussion.turns.forEach((turn, row) => {
    const card = turnCard(turn);
    card.style.gridColumn = agents.indexOf(turn.agent) + 1;
    card.style.gridRow = row + 2;
    cards.set(turn.id, card);
  });
  const told = h("p", { class: "told", role: "status", "aria-live": "polite" },
    "Point at an arrow: it says how a judgement became a reward.");
  const arrows = svg("svg", { class: "arrows", "aria-label": "what each turn is about" });
  const grid = h("div", { class: "board" },
    agents.map((name) => h("h3", { class: "agent" }, name)), [...cards.values()], arrows);
  grid.style.gridTemplateColumns = `repeat(${agents.length}, minmax(13rem, 1fr))`;
  const draw = () => drawArrows(arrows, grid, discussion, cards, rewardedFor, told);
  new ResizeObserver(draw).observe(grid);
  return h("section", {}, question(discussion), told, grid, legendOfRewards(rewardedFor));
}

function question({ question: asked, answer, error, verdict }) {
  return [
    h("h2", {}, "Question"), prose(asked.prompt || asked.id, "said question"),
    h("dl", { class: "facts" },
      asked.answer !== undefined && asked.answer !== null
        && [h("dt", {}, "label"), h("dd", { dir: "auto" }, String(asked.answer))],
      h("dt", {}, "answer of the team"), h("dd", {}, answer === null ? "none" : prose(answer, "inline")),
      verdict && [h("dt", {}, "verdict"), h("dd", {}, verdict)],
      error && [h("dt", {}, "failed"), h("dd", { class: "bad" }, error)])];
}

function turnCard(turn) {
  const labelled = turn.right === null ? null : turn.right ? "right" : "wrong";
  const read = Object.entries(turn.facts).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  const kind = turn.role === "tool" ? "tool" : turn.facts.posed !== undefined ? "posed" : "";
  return h("article", { class: `turn ${kind}`, tabindex: 0, id: `turn-${turn.id}`,
    "aria-label": visible(`${turn.agent}, ${turn.role}`) },
  h("header", { "data-agent": visible(turn.agent + " ") }, h("b", {}, turn.role), " ", rewardTag(turn.reward),
    labelled && h("span", { class: `label ${labelled}` }, labelled),
    turn.accepts === true && h("span", { class: "label" }, "accepts"),
    turn.accepts === false && h("span", { class: "label" }, "rejects"),
    turn.unreadable && h("span", { class: "label bad" }, "unreadable"),
    !turn.finished && h("span", { class: "label bad" }, "cut")),
  turn.thoughts && h("details", {}, h("summary", {}, "thoughts"), prose(turn.thoughts)),
  prose(turn.text), read.length > 0 && h("p", { class: "read" }, "read: ", read.join(", ").slice(0, 400)),
  h("details", {}, h("summary", {}, figuresOf(turn)),
    h("dl", { class: "facts" }, Object.entries(NUMBERS).map(([name, unit]) =>
      [h("dt", {}, name.replace("_", " ")), h("dd", {}, number(turn[name], unit))])),
    h("p", {}, "policy ", turn.policy), h("h4", {}, "Prompt"), prose(turn.prompt)));
}

const figuresOf = (turn) => `${number(turn.tokens, "tokens")}, version ${turn.version}`
  + (turn.advantage === null ? "" : `, advantage ${signed(turn.advantage)}`)
  + (turn.kl === null ? "" : `, KL ${number(turn.kl)}`);
const signed = (value) => (value >= 0 ? "+" : "") + value.toFixed(2);

function rewardTag(reward) {
  if (reward === null || reward === undefined) return h("span", { class: "reward none" }, "no reward");
  return h("span", { class: `reward ${reward > 0 ? "gain" : reward < 0 ? "loss" : ""}` }, signed(reward));
}

// In words: what was read in a judgement, and which reward came of it.
function explained(turn, discussion, rewardedFor) {
  const turns = new Map(discussion.turns.map((one) => [one.id, one]));
  const chain = [turn];
  while (chain.at(-1).about && turns.has(chain.at(-1).about)) chain.push(turns.get(chain.at(-1).about));
  const read = ["score", "verdict", "said", "answer"].filter((fact) => fact in turn.facts)
    .map((fact) => (turn.facts[fact] === null ? `no ${fact} could be read` : `${fact} ${turn.facts[fact]}`));
  const rewards = chain.map((one) => `${one.role} of ${one.agent} `
    + (one.reward === null ? "has no reward" : `has reward ${signed(one.reward)}`)
    + (rewardedFor[one.role] ? ` (${rewardedFor[one.role]})` : ""));
  return `${turn.agent} as ${turn.role}${read.length ? ": " + read.join(", ") : ""} → ${rewards.join("; ")}.`;
}

function drawArrows(arrows, grid, discussion, cards, rewardedFor, told) {
  const box = grid.getBoundingClientRect();
  arrows.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  arrows.replaceChildren(...discussion.turns.filter((turn) => cards.has(turn.about)).map((turn) => {
    const from = cards.get(turn.id).getBoundingClientRect();
    const to = cards.get(turn.about).getBoundingClientRect();
    const [x1, y1] = [from.left - box.left + from.width / 2, from.top - box.top];
    const [x2, y2] = [to.left - box.left + to.width / 2, to.bottom - box.top];
    const bend = Math.max(14, (y1 - y2) / 2);
    const d = `M${x1} ${y1}C${x1} ${y1 - bend} ${x2} ${y2 + bend} ${x2} ${y2 + 7}`;
    const text = explained(turn, discussion, rewardedFor);
    const tell = () => { told.textContent = visible(text); };
    return svg("g", { class: turn.judges ? "judges" : "", tabindex: 0, role: "img",
      "aria-label": text, pointerenter: tell, focus: tell, click: tell },
    svg("title", {}, text), svg("path", { class: "near", d }), svg("path", { d }),
    svg("path", { class: "head", d: `M${x2} ${y2 + 1}l4 8h-8z` }));
  }));
}

function legendOfRewards(rewardedFor) {
  const roles = Object.entries(rewardedFor);
  return roles.length > 0 && h("details", {}, h("summary", {}, "what is rewarded"), h("ul", {},
    roles.map(([role, what]) => h("li", {}, h("b", {}, role), " is rewarded with ", what))));
}
