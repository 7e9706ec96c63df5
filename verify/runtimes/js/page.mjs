// The page that onnxruntime-web runs in: each call of `serve` fetches one request, and posts its answer.

import * as ort from "./dist/ort.wasm.min.mjs";
import { Sessions } from "./sessions.mjs";

const wanted = Number(new URLSearchParams(location.search).get("threads"));
// Without isolation a page has no SharedArrayBuffer, and one thread.
ort.env.wasm.numThreads = crossOriginIsolated ? wanted : 1;
ort.env.wasm.wasmPaths = new URL("./dist/", location.href).href;
ort.env.logLevel = "fatal";

const facts = () => ({
  host: navigator.userAgentData?.brands.map(({ brand, version }) => `${brand} ${version}`).find((one) => one.startsWith("Chromium")) ?? navigator.userAgent,
  onnxruntime: ort.env.versions.web ?? ort.env.versions.common,
  threads: String(ort.env.wasm.numThreads),
  cross_origin_isolated: String(crossOriginIsolated),
});
const sessions = new Sessions(ort, "wasm", facts);

window.serve = async () => {
  const request = await fetch("request", { cache: "no-store" });
  const frame = new Uint8Array(await request.arrayBuffer());
  await fetch("answer", { method: "POST", body: await sessions.answer(frame) });
};
