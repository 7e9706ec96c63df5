const matrix = document.querySelector("table.matrix");
document.querySelectorAll("table.data:not(.matrix)").forEach((table) => {
  // A folded table is made ready when it is opened.
  const fold = table.closest("details:not([open])");
  if (fold) fold.addEventListener("toggle", () => enhance(table), { once: true });
  else enhance(table);
});
if (matrix) enhanceMatrix(matrix, openEntry);
document.documentElement.dataset.ready = "yes";
