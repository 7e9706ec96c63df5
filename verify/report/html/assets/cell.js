// One cell in full: its gates, its worst element, its bits, who is blamed, and the same case elsewhere.
const PARTIES = [
  ["module", "the module itself, ill-conditioned here"],
  ["exporter", "what made the file of the module"],
  ["fusion", "what made the file of another one"],
  ["compiler", "torch.compile"],
  ["optimiser", "the runtime's graph optimisations"],
  ["kernel", "the runtime's own computation"],
  ["precision", "the arithmetic that it ran in"],
];

function sameExport(one, other) {
  return ["model", "variant", "opset", "dtype"].every((name) => one[name] === other[name]);
}

function gateRows(cell, failed) {
  const rows = [];
  for (const [gate, numbers] of Object.entries(cell.gates)) {
    const held = failed.includes(gate) ? "failed" : "passed";
    for (const [name, value] of Object.entries(numbers)) {
      if (name.endsWith("_limit")) continue;
      const limit = `${name}_limit` in numbers ? numbers[`${name}_limit`] : name.includes("_over_") ? 1 : null;
      rows.push([gate, mark(held), name, exactly(value), exactly(limit)]);
    }
  }
  // A gate without numbers is told by its finding alone.
  for (const gate of failed) if (!(gate in cell.gates)) rows.push([gate, mark("failed"), "", "n/a", "n/a"]);
  return rows;
}

/** The chain of parties with the guilty one marked, and below it the first bad node where the finding names one. */
function chain(finding) {
  if (!finding.blame && !finding.node) return null;
  const steps = PARTIES.map(([name, what]) => {
    const guilty = name === finding.blame;
    return make("li", { class: guilty ? "guilty" : null, title: what }, name, guilty ? make("strong", {}, " at fault") : null);
  });
  const node = finding.node ? make("p", { class: "node" }, "First bad node: ", make("code", {}, finding.node)) : null;
  return make("div", {}, finding.blame ? make("ol", { class: "chain", "aria-label": "Who is at fault" }, steps) : null, node, around(finding));
}

/** A copy of the picture of what is around a finding's node, null where there is none; an id stands once in a page. */
function around(finding) {
  const place = [finding.model, finding.variant, finding.opset, finding.dtype, finding.node].join("|");
  const drawn = [...document.querySelectorAll("main [data-around]")].find((one) => one.dataset.around === place);
  if (!drawn) return null;
  const copy = drawn.firstElementChild.cloneNode(true);
  const ids = new Map([...copy.querySelectorAll("[id]")].map((one) => [one.id, `cell-${one.id}`]));
  for (const one of copy.querySelectorAll("[id]")) one.id = ids.get(one.id);
  for (const one of copy.querySelectorAll("[aria-labelledby]")) {
    one.setAttribute("aria-labelledby", one.getAttribute("aria-labelledby").split(" ").map((id) => ids.get(id)).join(" "));
  }
  return copy;
}

/** Findings told of a cell: they are recorded once a runtime, for the first case, or for all runtimes together. */
function findingsOf(cell) {
  const counts = ["failed", "errored"].includes(cell.verdict);
  return records("finding").filter((one) => sameExport(one, cell)
    && ((one.runtime === cell.runtime && cell.findings.includes(one.code)) || (counts && one.runtime === "" && one.blame)));
}

function shownFinding(one) {
  const where = one.case ? ` (first seen in ${one.case})` : "";
  return make("article", { class: "finding" }, make("h4", {}, codeLink(one.code), ` ${one.severity}`),
    make("p", {}, one.message, where), make("p", {}, make("strong", {}, "Next: "), one.next_step), chain(one));
}

function elsewhere(cell, caseId) {
  const rows = [];
  records("cell").forEach((one, index) => {
    const judged = records("judged")[index];
    if (sameExport(one, cell) && judged.case === caseId) {
      rows.push([one.runtime, mark(judged.shown), exactly(one.gates.proof?.max_err_over_tau), exactly(one.effective_bits), exactly(one.ran_as)]);
    }
  });
  return tableOf("The same case on every runtime", ["runtime", "verdict", "error/bound", "effective bits", "ran as"], rows);
}

function softmaxOf(cell) {
  const key = JSON.stringify(cell.case);
  const told = records("stability").filter((one) => sameExport(one, cell) && one.runtime === cell.runtime && JSON.stringify(one.case) === key);
  const left = new Set(["kind", "schema", "model", "variant", "opset", "dtype", "artifact_sha256", "runtime", "case"]);
  return told.map((one) => make("details", {}, make("summary", {}, `Softmax of ${one.attention}: ${one.verdict}`),
    facts(Object.entries(one).filter(([name]) => !left.has(name)))));
}

function shownCell(index) {
  const cell = records("cell")[index];
  const judged = records("judged")[index];
  const found = findingsOf(cell);
  const worst = cell.worst_output
    ? `${cell.worst_output}[${cell.worst_index.join(", ")}]: actual ${cell.worst_actual || "n/a"}, expected ${cell.worst_expected || "n/a"}` : "n/a";
  return make("article", { class: "cell", tabindex: -1, "aria-label": `Cell ${judged.case ?? ""}` },
    make("h3", {}, judged.case ?? "Not run"), make("p", {}, mark(judged.shown), cell.reason ? `: ${cell.reason}` : ""),
    cell.known ? make("p", {}, "Known: ", issueLink(cell.known)) : null,
    facts([["worst element", worst], ["effective bits", cell.effective_bits], ["largest absolute error", cell.max_abs_err],
      ["largest relative error", cell.max_rel_err], ["arithmetic declared", cell.arithmetic], ["ran as", cell.ran_as],
      ["case", cell.case], ["runtime", `${cell.runtime} ${cell.runtime_version}`], ["provider asked for", cell.provider_requested],
      ["provider used", cell.provider_used], ["nodes by provider", cell.nodes_by_provider], ["session", cell.session],
      ["file", cell.artifact_sha256]]),
    tableOf("Gates", ["gate", "verdict", "number", "value", "limit"], gateRows(cell, judged.failed_gates)),
    found.length ? [make("h4", {}, "Findings and blame"), found.map(shownFinding)] : null,
    softmaxOf(cell), cell.case ? elsewhere(cell, judged.case) : null);
}
