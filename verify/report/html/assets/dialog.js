// What is behind an entry of the matrix: its cells, and one of them in full.
function behind(first) {
  const found = [];
  records("cell").forEach((cell, index) => {
    if (sameExport(cell, first) && cell.runtime === first.runtime) found.push(index);
  });
  return found;
}

function others(kind, cell, columns) {
  const rows = records(kind).filter((one) => sameExport(one, cell) && one.runtime === cell.runtime);
  if (!rows.length) return null;
  const title = { relation: "Relations", headroom: "Where its softmaxes break" }[kind];
  const told = rows.map((one) => columns.map((name) => (name === "verdict" ? mark(one.verdict) : exactly(one[name]))));
  return make("details", {}, make("summary", {}, title), tableOf(title, columns, told));
}

/** Open the entry that a cell belongs to. */
function openEntry(index) {
  const dialog = document.getElementById("entry");
  const first = records("cell")[index];
  const indices = behind(first);
  const title = [first.model, first.variant, first.opset ?? "n/a", first.dtype].join(" ");
  const detail = make("div", { class: "detail" });
  const rows = indices.map((index) => {
    const cell = records("cell")[index];
    const judged = records("judged")[index];
    const button = make("button", { type: "button" }, judged.case ?? "not run");
    button.addEventListener("click", () => {
      detail.replaceChildren(shownCell(index));
      detail.querySelectorAll("table").forEach(sortable);
      detail.firstElementChild.focus();
    });
    return [button, mark(judged.shown), exactly(cell.gates.proof?.max_err_over_tau), exactly(cell.effective_bits), exactly(cell.ran_as),
      make("span", {}, cell.findings.flatMap((code, place) => [place ? ", " : null, codeLink(code)]))];
  });
  const heading = ["case", "verdict", "error/bound", "effective bits", "ran as", "findings"];
  const list = tableOf("Cells", heading, rows), legend = legendOf(["error/bound", "effective bits", "ran as"]);
  const close = make("button", { type: "button", class: "close" }, "Close");
  close.addEventListener("click", () => dialog.close());
  const more = [
    others("relation", first, ["relation", "verdict", "holds", "exactness", "asked_by", "max_difference_over_bound", "reason"]),
    others("headroom", first, ["softmax", "profile", "verdict", "kept", "predicted_logit", "broke_at_logit", "given_largest_logit", "headroom_log2"]),
  ].filter(Boolean);
  const head = make("div", { class: "dialog-head" }, make("h2", { id: "entry-title" }, `${title} on ${first.runtime}`), close);
  dialog.replaceChildren(...[head, list, legend, detail, ...more].filter(Boolean));
  // A link to a code leads out of the dialog.
  dialog.onclick = (event) => { if (event.target.closest('a[href^="#"]')) dialog.close(); };
  const table = list.querySelector("table");
  if (indices.length > 8) filterable(table);
  sortable(table);
  sortBy(table, 1, false);
  dialog.showModal();
}
