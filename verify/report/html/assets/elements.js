// Elements are made here, and text goes in as text: nothing is ever parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";
const MARKS = new Set(["passed", "failed", "errored", "inconclusive", "skipped", "failed (known)", "errored (known)"]);

/** What cannot be printed, or turns the order of letters round, is shown as a mark, as markup.py does. */
function printable(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (char) =>
    "\n\t\u200c\u200d".includes(char) ? char : "\ufffd");
}

function make(name, attributes, ...content) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  for (const part of content.flat(Infinity)) {
    if (part === null || part === undefined || part === "") continue;
    element.append(part instanceof Node ? part : printable(part));
  }
  return element;
}

function mark(word) {
  if (!MARKS.has(word)) return make("span", {}, word);
  const name = word.replace(" (known)", "-known");
  const shape = document.createElementNS(SVG, "svg");
  shape.setAttribute("class", "mark");
  shape.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#mark-${name}`);
  shape.append(use);
  return make("span", { class: `verdict ${name}` }, shape, word);
}

/** A number in full, as it is in the records; what is not known says so. */
function exactly(value) {
  if (value === null || value === undefined || value === "") return "n/a";
  if (Array.isArray(value)) return value.length ? value.map(exactly).join(", ") : "none";
  if (typeof value === "object") {
    const parts = Object.entries(value).map(([key, one]) => `${key} ${exactly(one)}`);
    return parts.length ? parts.join(", ") : "none";
  }
  return String(value);
}

function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.map(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, value instanceof Node ? value : exactly(value))]));
}

function codeLink(code) {
  return document.getElementById(`code-${code}`) ? make("a", { href: `#code-${code}` }, code) : make("span", {}, code);
}

function issueLink(address) {
  return /^https?:\/\//.test(address) ? make("a", { href: address, rel: "noreferrer" }, address) : make("span", {}, address);
}

/** What columns mean, to be opened: in the words of the page's own tables, which have them with another heading. */
function legendOf(heading) {
  const known = new Map([...document.querySelectorAll("main .legend dt")].map((one) => [one.textContent.replace(/^max /, ""), one.nextElementSibling]));
  const told = heading.filter((name) => known.has(name)).map((name) => [make("dt", {}, name), make("dd", {}, known.get(name).textContent)]);
  return told.length ? make("details", { class: "legend" }, make("summary", {}, "What the columns mean"), make("dl", {}, told)) : null;
}

function tableOf(title, heading, rows) {
  const body = rows.map((row) => make("tr", {}, row.map((one) => make("td", {}, one))));
  const table = make("table", { class: "data" }, make("caption", {}, title),
    make("thead", {}, make("tr", {}, heading.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, body));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, table);
}
