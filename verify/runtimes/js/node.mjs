// The process that onnxruntime runs in under Node: frames on stdin, frames on stdout, see sessions.mjs.
//
// node node.mjs PACKAGE FOLDER: the package (onnxruntime-node, or onnxruntime-web for WebAssembly), and the
// folder whose node_modules has it.

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { Sessions } from "./sessions.mjs";

// Answers alone go to stdout.
for (const name of ["log", "info", "debug", "warn"]) {
  console[name] = console.error;
}

const [name, folder] = process.argv.slice(2);
const [ort, backend] = name === "onnxruntime-node" ? native() : await wasm();
const facts = () => ({
  host: `Node ${process.versions.node}`,
  onnxruntime: ort.env.versions.node ?? ort.env.versions.web ?? ort.env.versions.common,
  ...(backend === "wasm" && { threads: String(ort.env.wasm.numThreads) }),
});
const sessions = new Sessions(ort, backend, facts);

function native() {
  return [createRequire(path.join(folder, "package.json"))("onnxruntime-node"), "cpu"];
}

async function wasm() {
  const file = path.join(folder, "node_modules", name, "dist", "ort.wasm.min.mjs");
  const ort = await import(pathToFileURL(file).href);
  // Its threads are workers that fetch their script, which Node does not do of a file.
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "fatal";
  return [ort, "wasm"];
}

let waiting = Buffer.alloc(0);
const chunks = [];
let held = 0;
for await (const chunk of process.stdin) {
  chunks.push(chunk);
  held += chunk.length;
  for (;;) {
    if (held < 8) break;
    if (waiting.length < 8) join();
    const length = 8 + waiting.readUInt32LE(0) + waiting.readUInt32LE(4);
    if (held < length) break;
    join();
    const frame = waiting.subarray(0, length);
    waiting = waiting.subarray(length);
    held -= length;
    process.stdout.write(await sessions.answer(frame));
  }
}

// One copy a frame, not one a chunk.
function join() {
  waiting = Buffer.concat([waiting, ...chunks.splice(0)]);
}
