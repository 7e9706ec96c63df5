// Load a bundle of `onnx-attest deploy` from a web server, with nothing but onnxruntime-web: every digest first, then its
// test data against the bounds that it brings along. Served from https or localhost, since SubtleCrypto is there only.

const LINE = /^([0-9a-f]{64})  ([A-Za-z0-9_+-][A-Za-z0-9._+-]*(?:\/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*)$/;
const TYPES = {
  "<f4": ["float32", Float32Array], "<f8": ["float64", Float64Array], "|b1": ["bool", Uint8Array],
  "<i8": ["int64", BigInt64Array], "<i4": ["int32", Int32Array], "|u1": ["uint8", Uint8Array], "|i1": ["int8", Int8Array],
};
if (globalThis.Float16Array) TYPES["<f2"] = ["float16", Float16Array];

// Return { id, about, session, replay }: the digest of the list of digests, what bundle.json says, an InferenceSession,
// and what runs one set of test data. Compare `id` with what `deploy` printed: it says that this is that bundle.
export async function load(ort, address, { allowUnverified = false } = {}) {
  const listed = await fetched(address, "SHA256SUMS");
  const files = new Map();
  for (const [path, digest] of readList(new TextDecoder("ascii").decode(listed))) {
    const bytes = await fetched(address, path);
    if ((await digestOf(bytes)) !== digest) throw new Error(`${path} does not have the digest that SHA256SUMS says`);
    files.set(path, bytes);
  }
  const about = JSON.parse(new TextDecoder().decode(required(files, "bundle.json")));
  if ((await knownAs(files, about.weights)) !== about.sha256) throw new Error("bundle.json is about another file than model.onnx");
  if (about.unverified && !allowUnverified) throw new Error(`the bundle is unverified: ${about.unverified}`);
  // Weights beside the model are handed over as well: the browser has no folder to look into.
  const externalData = about.weights.map((path) => ({ path, data: required(files, path) }));
  const session = await ort.InferenceSession.create(required(files, "model.onnx"), { externalData });
  const replay = (name) => replayed(ort, session, about, readNpz(required(files, `${name}/reference.npz`)));
  return { id: await digestOf(listed), about, session, replay };
}

async function fetched(address, path) {
  const answer = await fetch(new URL(path, address), { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path} is not there: ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

function required(files, path) {
  if (!files.has(path)) throw new Error(`${path} is not in SHA256SUMS`);
  return files.get(path);
}

async function digestOf(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// What the model is known by: its digest, or, if weights lie beside it, that of a list of the digests of both.
async function knownAs(files, weights) {
  const own = await digestOf(required(files, "model.onnx"));
  if (!weights.length) return own;
  let list = `${own}\n`;
  for (const path of [...weights].sort()) list += `${await digestOf(required(files, path))}  ${path}\n`;
  return digestOf(new TextEncoder().encode(list));
}

function readList(text) {
  if (!text.endsWith("\n")) throw new Error("SHA256SUMS does not end with a newline: it was cut");
  const found = text.slice(0, -1).split("\n").map((line, index) => {
    const parts = LINE.exec(line);
    if (!parts) throw new Error(`SHA256SUMS, line ${index + 1} is not '<sha256>  <path>'`);
    return [parts[2], parts[1]];
  });
  if (found.some(([path], index) => index && !(found[index - 1][0] < path)))
    throw new Error("SHA256SUMS is not in order, or has a file twice");
  return found;
}

const LARGEST = { float16: 65504, float32: (2 - 2 ** -23) * 2 ** 127, float64: Number.MAX_VALUE };

// How often one element is beyond its bound: 0 if it is what it should be, infinite if it is NaN or infinite and should not be.
export function ratioOf(got, exact, limit, largest) {
  const size = Math.abs(exact), stored = size > largest ? Math.sign(exact) * Infinity : exact;
  if (Number.isFinite(exact) && !(limit >= 0)) return Infinity;
  if (Object.is(got, stored) || got === stored) return 0;
  // Within its bound of the largest number, rounding decides between that and an infinity of the same sign.
  if (got === Math.sign(exact) * Infinity && Number.isFinite(exact) && size + limit > largest && size - limit <= largest) return 0;
  if (!Number.isFinite(got) || !Number.isFinite(exact)) return Infinity;
  const error = Math.abs(got - exact);
  return error === 0 || limit === Infinity ? 0 : error / limit;
}

// Run one set; `wrong` is "" if every output is within its bound, `unbounded` counts the elements that have none.
async function replayed(ort, session, about, held) {
  const inputs = Object.fromEntries(about.inputs.map(({ name }, index) => {
    const { type, data, shape } = held[`input_${index}`];
    return [name, new ort.Tensor(type, data, shape)];
  }));
  const outputs = await session.run(inputs);
  let wrong = "", worst = 0, unbounded = 0;
  about.outputs.forEach(({ name, dtype }, index) => {
    const value = held[`value_${index}`], bound = held[`bound_${index}`], { type, dims, data } = outputs[name];
    if (type !== dtype || String(dims) !== String(value.shape)) {
      wrong ||= `${name} is ${type} [${dims}], it should be ${dtype} [${value.shape}]`;
      return;
    }
    value.data.forEach((exact, place) => {
      const limit = bound ? bound.data[place] : 0, largest = LARGEST[dtype] ?? Infinity;
      // Integers of 64 bits differ where their numbers do not.
      const same = typeof exact !== "bigint" || bound || data[place] === exact;
      const ratio = same ? ratioOf(Number(data[place]), Number(exact), limit, largest) : Infinity;
      unbounded += limit === Infinity && Number.isFinite(exact) ? 1 : 0;
      if (!(ratio <= 1)) wrong ||= `${name}, element ${place} is ${data[place]}, exact ${exact}`;
      worst = Math.max(worst, ratio);
    });
  });
  return { wrong, worst, unbounded };
}

// NumPy's .npz: a zip whose members are stored as they are, each an array.
function readNpz(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), found = {};
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("the test data are no zip");
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left; left--) {
    const [name, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const size = view.getUint32(at + 20, true), start = view.getUint32(at + 42, true);
    if (view.getUint16(at + 10, true) || size === 0xffffffff) throw new Error("the test data are compressed, or too large");
    const key = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name)).replace(/\.npy$/, "");
    const data = start + 30 + view.getUint16(start + 26, true) + view.getUint16(start + 28, true);
    found[key] = readNpy(bytes.slice(data, data + size));
    at += 46 + name + extra + comment;
  }
  return found;
}

function readNpy(bytes) {
  const length = new DataView(bytes.buffer).getUint16(8, true);
  const header = new TextDecoder("latin1").decode(bytes.subarray(10, 10 + length));
  const kind = /'descr': '([^']+)'/.exec(header)?.[1];
  if (!(kind in TYPES)) throw new Error(`the test data hold ${kind}, which this browser has no array for`);
  if (!header.includes("'fortran_order': False")) throw new Error("an array of the test data is in Fortran's order");
  const shape = /'shape': \(([^)]*)\)/.exec(header)[1].split(",").filter((size) => size.trim()).map(Number);
  const [type, Numbers] = TYPES[kind];
  return { type, shape, data: new Numbers(bytes.slice(10 + length).buffer) };
}
