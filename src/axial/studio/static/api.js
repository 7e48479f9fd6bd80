// The HTTP API of docs/studio.md, and nothing else of the server.

import { fromBase64 } from "./pixels.js";

/** What the server said when it refused: one line for the page. */
export class Refused extends Error {
  constructor({ status, kind, message }, wait = null) {
    super(wait ? `${message} (try again in ${wait} s)` : message);
    Object.assign(this, { status, kind });
  }
}

async function answer(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({
      status: 0,
      kind: "offline",
      message: "the server does not answer: is `axial studio` still running?",
    });
  }
  if (response.ok) return response;
  let found = null;
  try {
    found = (await response.json()).error;
  } catch {
    // not one of ours: a proxy, or a server that is ending
  }
  const fallback = {
    status: response.status,
    kind: "failed",
    message: `the server answered ${response.status}`,
  };
  throw new Refused(found ?? fallback, response.headers.get("Retry-After"));
}

export async function get(path, options) {
  return (await answer(path, options)).json();
}

/**
 * Ask a model for work and tell `on[event]` of each event; the result is the data of `done`, or
 * null when it was cancelled. `body` is a FormData for uploads, any other object goes as JSON. To
 * abort `signal` cancels the job.
 */
export async function work(model, kind, body, { on = {}, signal } = {}) {
  const options = { method: "POST", headers: { Accept: "text/event-stream" }, body, signal };
  if (!(body instanceof FormData)) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const response = await answer(`/api/models/${encodeURIComponent(model)}/${kind}`, options);
  for await (const { event, data } of events(response.body)) {
    on[event]?.(data);
    if (event === "done") return data;
    if (event === "cancelled") return null;
    if (event === "error") throw new Refused(data.error);
  }
  throw new Refused({
    status: 0,
    kind: "offline",
    message: "the server closed the connection before it was done",
  });
}

/** Server-sent events from the body of an answer: EventSource can only GET. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value.replaceAll("\r", "");
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const found = parse(text.slice(0, end));
        text = text.slice(end + 2);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const lines = block.split("\n").filter((line) => line && !line.startsWith(":"));
  const of = (name) =>
    lines
      .filter((line) => line.startsWith(`${name}:`))
      .map((line) => line.slice(name.length + 1).trim());
  const data = of("data").join("\n");
  return data ? { event: of("event")[0] ?? "message", data: JSON.parse(data) } : null;
}

export const integers = (text, dtype) =>
  fromBase64(text, dtype === "uint16" ? Uint16Array : Uint8Array);
export const floats = (text) => fromBase64(text, Float32Array);

/** Put what an event `lines` brings into the pictures of a job; the indices of the changed ones. */
export function grow(pictures, data, dtype) {
  const places = fromBase64(data.places, Uint32Array);
  const values = integers(data.values, dtype);
  const changed = [];
  for (let k = 0; k < data.count; k++) {
    const picture = pictures[data.first + k];
    if (!picture) continue;
    places.forEach((place, at) => (picture[place] = values[k * places.length + at]));
    changed.push(data.first + k);
  }
  return changed;
}
