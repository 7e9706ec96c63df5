// Tables sort by their headings, and are filtered by words and by choices above them.
const UNITS = { us: 1e-6, ms: 1e-3, s: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, "%": 0.01 };
const BADNESS = ["failed", "errored", "inconclusive", "failed (known)", "errored (known)", "passed", "skipped"];

/** What a cell is sorted by: a verdict by how bad it is, a number with its unit, else its text; n/a comes last. */
function sortKey(text) {
  const words = text.trim();
  if (words === "" || words === "n/a") return [3, 0];
  if (BADNESS.includes(words)) return [0, BADNESS.indexOf(words)];
  const less = /^1 - (\d[\d.e+-]*)$/.exec(words);
  if (less) return [1, 1 - Number(less[1])];
  const found = /^([<>]?)(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: ?(us|ms|s|KiB|MiB|GiB|%))?(?=$|[ (,/])/.exec(words);
  if (!found) return [2, words.toLowerCase()];
  const side = { "<": 1 - 1e-9, ">": 1 + 1e-9 }[found[1]] ?? 1;
  return [1, Number(found[2]) * (UNITS[found[3]] ?? 1) * side];
}

function compare(one, other) {
  if (one[0] !== other[0]) return one[0] - other[0];
  if (typeof one[1] === "number" && typeof other[1] === "number") return one[1] - other[1];
  return String(one[1]).localeCompare(String(other[1]), "en", { numeric: true });
}

function sortBy(table, column, descending) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [sortKey(row.cells[column].textContent), row]);
  keyed.sort((a, b) => {
    const missing = (a[0][0] === 3) - (b[0][0] === 3);
    return missing || (descending ? compare(b[0], a[0]) : compare(a[0], b[0]));
  });
  body.append(...keyed.map(([, row]) => row));
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", class: "sort" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortBy(table, column, descending);
    });
  });
}

function choice(label, words, onChange) {
  const select = make("select", {}, make("option", { value: "" }, "all"), words.map((word) => make("option", { value: word }, word)));
  select.addEventListener("change", onChange);
  return { select, element: make("label", {}, `${label} `, select) };
}

/** Controls above a table; `more(row)` may refuse a row as well, and `extra` holds its elements. */
function filterable(table, extra = [], more = () => true) {
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells];
  const title = table.caption.textContent;
  const shown = make("output", { class: "count" });
  const words = make("input", { type: "search", "aria-label": `Rows with these words: ${title}`, placeholder: "rows with these words" });
  const choices = [];
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(wanted.every((word) => text.includes(word))
        && choices.every(({ select, column }) => !select.value || row.cells[column].textContent === select.value) && more(row));
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = `${count} of ${rows.length} rows`;
  };
  heads.forEach((head, column) => {
    if (!head.hasAttribute("data-choice")) return;
    const found = [...new Set(rows.map((row) => row.cells[column].textContent))].sort();
    if (found.length > 1) choices.push({ ...choice(head.textContent, found, apply), column });
  });
  words.addEventListener("input", apply);
  const tools = make("div", { class: "tools", role: "group", "aria-label": `Filter: ${title}` },
    words, choices.map(({ element }) => element), extra, shown);
  table.closest(".scroll").before(tools);
  apply();
  return apply;
}

function enhance(table) {
  if (table.hasAttribute("data-filter")) filterable(table);
  sortable(table);
}
