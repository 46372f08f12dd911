// Pages by address (what stands behind #), keys, and looking again while a run goes on.

const main = document.getElementById("main");
const state = document.getElementById("state");
const PAUSE = 3000;

function places() {
  const links = [link("", "Overview"), link(path("find", "any", ""), "Find")];
  for (const folder of runs()) {
    links.push(link(path(folder.number, "truth", 1, Math.max(1, folder.steps.length)),
      tagged(folder, "Judges")));
    const last = [...folder.steps].reverse().find((one) => hasStep(folder, one.step));
    if (last) links.push(link(path(folder.number, "step", last.step + 1), tagged(folder, "Last step")));
  }
  document.getElementById("places").replaceChildren(...links);
}

async function content() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (parts[0] === "find") return findPage(parts[1] || "any", parts[2] || "");
  if (parts[0] === "question") return questionPage(parts[1]);
  const folder = folders[Number(parts[0] || 0)];
  const numbers = parts.slice(2).map(Number);
  if (!folder) throw new Error("this page does not exist");
  switch (parts[1]) {
    case "step": return numbers.length > 1 ? discussionPage(folder, ...numbers) : stepPage(folder, ...numbers);
    case "truth": return truthPage(folder, ...numbers);
    case "eval": return measuredPage(folder, parts[2]);
    case "games": return numbers.length > 1 ? gamePage(folder, ...numbers) : gamesPage(folder, ...numbers);
    default: {
      const others = folders.filter((one) => one.facts.kind !== "run");
      return [others.map(evaluationPage), runs().length > 0 && overview()];
    }
  }
}

async function show() {
  const asked = location.hash;
  let found;
  try {
    found = await content();
  } catch (error) {
    found = [h("h1", {}, "Not here"), h("p", { class: "bad" }, error.message)];
  }
  if (location.hash !== asked) return;
  main.replaceChildren(fill(document.createDocumentFragment(), {}, [found]));
  document.title = visible(`${(main.querySelector("h1") || main.querySelector("h2") || {}).textContent || ""} · comas view`);
  main.dataset.ready = asked || "#/";
}

function turn(by) {
  const parts = location.hash.replace("#/", "").split("/");
  if (parts[1] !== "step" && parts[1] !== "games") return;
  parts[parts.length - 1] = String(Number(parts.at(-1)) + by);
  const first = parts[1] === "step" && parts.length === 3 ? 1 : 0;
  if (Number(parts.at(-1)) >= first) location.hash = "#/" + parts.join("/");
}

function up() {
  const parts = location.hash.replace("#/", "").split("/");
  location.hash = parts.length > 3 ? "#/" + parts.slice(0, -1).join("/") : "#/";
}

// its hash would be taken for the address of a page
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
  if (event.key === "j" || event.key === "ArrowRight") turn(1);
  else if (event.key === "k" || event.key === "ArrowLeft") turn(-1);
  else if (event.key === "u") up();
  else if (event.key === "/") { event.preventDefault(); location.hash = "#/find/any/"; }
});

async function again() {
  try {
    const more = await Promise.all(runs().map(follow));
    state.textContent = "";
    if (more.includes(true)) {
      places();
      if (["", "#", "#/"].includes(location.hash)) await show();
    }
  } catch {
    state.textContent = "The server does not answer: is comas view still running?";
  }
  setTimeout(again, PAUSE);
}

window.addEventListener("hashchange", async () => {
  await show();
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});

(async () => {
  try {
    await open();
    places();
    await show();
    if (isFile) state.textContent = "A file: what it holds is what was recorded when it was written.";
    else setTimeout(again, PAUSE);
  } catch (error) {
    main.replaceChildren(h("p", { class: "bad" }, error.message));
  }
})();
