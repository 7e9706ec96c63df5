// Sessions of ONNX Runtime in JavaScript, the same under Node and in a browser: a request in, an answer out.
//
// A message is a frame: two little-endian uint32, the lengths of a header and of a body; the header, JSON; the body,
// the bytes of all arrays one after another. Numbers never pass through JSON: an int64 or a NaN would not survive it.

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array, // bits; newer engines have a Float16Array, which onnxruntime makes of them itself
  int64: BigInt64Array,
  uint64: BigUint64Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
};

export function pack(header, parts = []) {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = parts.reduce((sum, part) => sum + part.byteLength, 0);
  const frame = new Uint8Array(8 + text.length + length);
  const view = new DataView(frame.buffer);
  view.setUint32(0, text.length, true);
  view.setUint32(4, length, true);
  frame.set(text, 8);
  let at = 8 + text.length;
  for (const part of parts) {
    frame.set(part, at);
    at += part.byteLength;
  }
  return frame;
}

export function unpack(message) {
  // Node's Buffer is a Uint8Array whose slice() copies nothing.
  const frame = new Uint8Array(message.buffer, message.byteOffset, message.byteLength);
  const view = new DataView(frame.buffer, frame.byteOffset);
  const end = 8 + view.getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(frame.subarray(8, end)));
  return [header, frame.subarray(end, end + view.getUint32(4, true))];
}

// `ort` is the module; `backend` the only execution provider asked for, so that there is none to fall back to.
export class Sessions {
  constructor(ort, backend, facts) {
    this.ort = ort;
    this.backend = backend;
    this.facts = facts;
    this.open = new Map();
  }

  async answer(frame) {
    try {
      const [header, body] = unpack(frame);
      for (const id of header.release ?? []) {
        await this.open.get(id)?.release();
        this.open.delete(id);
      }
      return await this[`on_${header.op}`](header, body);
    } catch (error) {
      return pack({ error: { name: error?.name ?? "Error", message: String(error?.message ?? error) } });
    }
  }

  async on_none() {
    return pack({});
  }

  async on_open({ id, path, threads }, body) {
    const options = { executionProviders: [this.backend], logSeverityLevel: 4 };
    if (threads) {
      options.intraOpNumThreads = threads;
    }
    // A copy: the bytes of a frame lie somewhere inside a larger buffer.
    const model = path ?? body.slice();
    const session = await this.ort.InferenceSession.create(model, options);
    this.open.set(id, session);
    return pack({ backend: this.backend, facts: this.facts(), outputs: session.outputNames });
  }

  // The inputs of a request, as a session takes them.
  feeds(inputs, body) {
    const feeds = {};
    let at = 0;
    for (const { name, type, dims, bytes } of inputs) {
      const data = new ARRAYS[type](body.slice(at, at + bytes).buffer);
      at += bytes;
      feeds[name] = new this.ort.Tensor(type, data, dims);
    }
    return feeds;
  }

  async on_time({ id, inputs, calls }, body) {
    const session = this.open.get(id);
    const feeds = this.feeds(inputs, body);
    const seconds = [];
    while (seconds.length < calls) {
      const start = performance.now();
      await session.run(feeds);
      seconds.push((performance.now() - start) / 1000);
    }
    return pack({ seconds });
  }

  async on_run({ id, inputs }, body) {
    const session = this.open.get(id);
    const results = await session.run(this.feeds(inputs, body));
    const outputs = [];
    const parts = [];
    for (const name of session.outputNames) {
      const { type, dims, data, location } = results[name];
      if (!(type in ARRAYS)) {
        throw new TypeError(`the output ${name} is of the type ${type}`);
      }
      const part = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      outputs.push({ name, type, dims, bytes: part.byteLength, location });
      parts.push(part);
    }
    return pack({ outputs }, parts);
  }
}
