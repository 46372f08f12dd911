// Elements are made of text, never of markup: whatever a model wrote stays text.

const SVG = "http://www.w3.org/2000/svg";
const STEERING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const LONGEST = 3000;

// Characters that steer the reader instead of being seen are written as their codes.
function visible(text) {
  return String(text).replace(STEERING, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);
const link = (to, ...children) => h("a", { href: "#/" + to }, ...children);
const path = (...parts) => parts.map((part) => encodeURIComponent(part)).join("/");

// A text of any length; what is beyond LONGEST is there on demand.
function prose(text, kind = "said") {
  const shown = h("div", { class: kind, dir: "auto" }, text.slice(0, LONGEST));
  if (text.length <= LONGEST) return shown;
  const rest = h("button", { click: () => shown.replaceChildren(visible(text)) },
    `show all ${text.length.toLocaleString("en")} characters`);
  return h("div", {}, shown, rest);
}

function number(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = Number.isInteger(value) || size >= 1000 ? Math.round(value).toLocaleString("en")
    : size >= 100 ? value.toFixed(0) : size >= 0.01 || size === 0 ? value.toFixed(2)
      : value.toPrecision(1);
  return unit ? `${text} ${unit}` : text;
}

function interval(found) {
  if (!found) return "not measured";
  if (found.low === null || found.low === undefined) return number(found.mean);
  return `${found.mean.toFixed(3)} [${found.low.toFixed(3)}, ${found.high.toFixed(3)}]`;
}

function table(headings, rows, caption) {
  return h("div", { class: "wide" }, h("table", {}, caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, headings.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) =>
      h("td", { class: /^[+−–-]?[\d.,]/.test(cell) ? "figure" : null }, cell)))))));
}

// Items of a long list, a portion at a time.
function portions(items, item, into, size = 50) {
  const more = (from) => {
    into.append(...items.slice(from, from + size).map(item));
    const left = items.length - from - size;
    const button = left > 0 && h("button", { click: () => { button.remove(); more(from + size); } },
      `show more: ${left} are left`);
    if (button) into.append(button);
  };
  into.replaceChildren();
  more(0);
}

function choice(label, options, chosen, change) {
  return h("label", {}, label, " ", h("select", { change: (event) => change(event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}
