// Sends HTTP requests to the server that the page came from. A key is asked for only where the server wants one.

import { askForKey, key, keyTaken } from "./keys.js";
import { texts } from "./texts.js";

// What the server refuses: `status` of HTTP (0 where there was no answer), `code` of the error.
export class Refusal extends Error {
  constructor(message, status, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The Response to `path` ("v1/models"), whatever its status but 401. `body` is sent as JSON; `kind` names the key
// that is asked for ("api", "admin"; "": none); `asking` is called before it is. After `lateMs` there is no answer any
// more, after `silentMs` the beginning of one must have come. Throws Refusal, and AbortError where `signal` says so.
export async function request(path, options = {}) {
  const { method = "GET", body, headers = {}, signal, kind = "api", asking, keepalive, lateMs, silentMs } = options;
  for (;;) {
    const used = kind && key(kind);
    const sent = { ...headers };
    if (used) sent.Authorization = `Bearer ${used}`;
    if (body !== undefined) sent["Content-Type"] = "application/json";
    const content = body === undefined ? undefined : JSON.stringify(body);
    const limits = { signal, lateMs, silentMs };
    const answer = await reach(path, { method, body: content, headers: sent, keepalive }, limits);
    if (answer.status !== 401 || !kind) {
      keyTaken(kind, used);
      return answer;
    }
    asking?.();
    if (!(await askForKey(kind, used))) throw new Refusal(texts.errors.keyMissing[kind], 401, "invalid_api_key");
    signal?.throwIfAborted();
  }
}

async function reach(path, options, { signal, lateMs, silentMs }) {
  const silence = new AbortController();
  const timer = silentMs && setTimeout(() => silence.abort(new DOMException("", "TimeoutError")), silentMs);
  const signals = [signal, lateMs && AbortSignal.timeout(lateMs), silentMs && silence.signal].filter(Boolean);
  const until = signals.length > 1 ? AbortSignal.any(signals) : signals[0];
  const always = { cache: "no-store", credentials: "omit", signal: until };
  try {
    return await fetch(new URL(path, document.baseURI), { ...always, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(texts.errors.unreachable, 0);
  } finally {
    clearTimeout(timer);
  }
}

// The JSON value at `path`, as `request`. Throws Refusal for any status but 2xx.
export async function json(path, options) {
  const answer = await request(path, options);
  if (!answer.ok) throw await refusal(answer);
  return await read(answer);
}

// The JSON value that the answer is. Throws Refusal where the connection breaks within it.
export async function read(answer) {
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(texts.errors.unreachable, 0);
  }
}

// The Refusal that an answer with an error status is.
export async function refusal(answer) {
  try {
    const { error } = await answer.json();
    return new Refusal(texts.errors.of(error), answer.status, String(error.code));
  } catch {
    return new Refusal(texts.errors.noJson(answer.status), answer.status);
  }
}
