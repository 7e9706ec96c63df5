// The matrix: one runtime alone, rows that have a verdict, and entries that open.
function enhanceMatrix(table, open) {
  const heads = [...table.tHead.rows[0].cells];
  const runtimes = heads.filter((head) => head.dataset.runtime !== undefined);
  const names = runtimes.map((head) => head.dataset.runtime);
  const words = [...new Set([...table.querySelectorAll("tbody .verdict")].map((one) => one.textContent))];
  let apply = () => {};
  const verdict = choice("verdict", words, () => apply());
  const runtime = choice("runtime", names, () => {
    heads.forEach((head, column) => {
      const hidden = head.dataset.runtime !== undefined && runtime.select.value !== "" && head.dataset.runtime !== runtime.select.value;
      for (const row of table.rows) row.cells[column].hidden = hidden;
    });
    apply();
  });
  const has = (row) => !verdict.select.value || [...row.cells].some((cell) =>
    !cell.hidden && cell.querySelector(".verdict")?.textContent === verdict.select.value);
  apply = filterable(table, [verdict.element, runtime.element], has);
  sortable(table);
  table.addEventListener("click", (event) => {
    const button = event.target.closest("tbody button");
    if (button) open(Number(button.dataset.cell));
  });
}
