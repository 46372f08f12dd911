// Documents by name: fetched from the server, or unpacked from the page itself.

const held = new Map();
for (const node of document.querySelectorAll("script[data-bundle]")) held.set(node.dataset.bundle, node);
const isFile = held.size > 0;
const known = new Map();

async function unpacked(node) {
  const bytes = Uint8Array.from(atob(node.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function fetched(name) {
  const answer = await fetch("data/" + name.split("/").map(encodeURIComponent).join("/"));
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

async function fromFile(name) {
  if (known.has(name)) return known.get(name);
  const parts = name.split("/");
  const bundle = [parts.slice(0, 3).join("/"), parts[0] + "/head"].find((one) => held.has(one));
  const documents = await unpacked(held.get(bundle));
  for (const [key, value] of Object.entries(documents)) known.set(key, value);
  if (known.has(name)) return known.get(name);
  if (parts.length === 4) {
    const all = known.get([...parts.slice(0, 3), "all"].join("/"));
    if (all && all[parts[3]]) return all[parts[3]];
  }
  throw new Error("this is not among what the file holds; ask the run itself: comas view RUN");
}

const read = (name) => (isFile ? fromFile(name) : fetched(name));

// Runs and evaluations that are looked at; `steps` grows while a run goes on.
const folders = [];

async function open() {
  const count = isFile ? [...held.keys()].filter((name) => name.endsWith("/head")).length
    : await read("folders");
  for (let number = 0; number < count; number += 1) {
    const facts = await read(`${number}/run`);
    const steps = facts.kind === "run" ? await read(`${number}/steps/0`) : [];
    folders.push({ number, facts, steps });
  }
}

// Whether there are new steps; a run that was set back is read again from the start.
async function follow(folder) {
  const facts = await read(`${folder.number}/run`);
  const measured = (some) => Object.keys(some.measured).length;
  const more = facts.steps !== folder.steps.length || measured(facts) !== measured(folder.facts);
  if (facts.steps < folder.steps.length) folder.steps = [];
  if (more) folder.steps.push(...await read(`${folder.number}/steps/${folder.steps.length}`));
  folder.facts = facts;
  return more;
}

const hasStep = (folder, step) =>
  step >= 0 && step < folder.steps.length && (!isFile || held.has(`${folder.number}/step/${step}`));
