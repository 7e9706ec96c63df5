// The data of the page, unpacked when it is first needed; packing.py says what a column is.
const stored = { rows: {} };

function values(column, count) {
  if ("all" in column) return new Array(count).fill(column.all);
  if ("of" in column) return column.at.map((place) => column.of[place]);
  if ("rows" in column) return column.rows;
  const shapes = values(column.shapes, count);
  const found = shapes.map(() => new Map());
  for (const [key, part] of Object.entries(column.parts)) {
    const having = shapes.flatMap((shape, row) => (shape.includes(key) ? [row] : []));
    const inner = values(part, having.length);
    having.forEach((row, index) => found[row].set(key, inner[index]));
  }
  // Of a Map, not of an object: a key may be called __proto__.
  return shapes.map((shape, row) => Object.fromEntries(shape.map((key) => [key, found[row].get(key)])));
}

function unpack(packed) {
  const columns = Object.entries(packed.columns).map(([key, column]) => [key, values(column, packed.count)]);
  return Array.from({ length: packed.count }, (_, row) =>
    Object.fromEntries(columns.map(([key, column]) => [key, column[row]])));
}

/** The records of one kind, `cell` for example, with the fields and the numbers of records.jsonl. */
function records(kind) {
  if (!(kind in stored.rows)) {
    const element = document.getElementById(`data-${kind}`);
    stored.rows[kind] = element ? unpack(JSON.parse(element.textContent)) : [];
  }
  return stored.rows[kind];
}
