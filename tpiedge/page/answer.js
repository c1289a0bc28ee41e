// Reads one streamed answer, and reconnects when the connection breaks. Where the server records its answers, the
// connection is made anew when it breaks, and the rest is asked for after the last event that came; elsewhere a break
// is the end. A connection over which nothing comes is a broken one: a server that lives says so every ten seconds.

import { refusal, Refusal, request } from "./api.js";
import { EventParser } from "./sse.js";
import { texts } from "./texts.js";

export const PATH = "v1/chat/completions";
const GIVE_UP_MS = 120_000;
const AGAIN_MS = 500;
// More than three of the server's pings.
const SILENT_MS = 35_000;
// A computer that wakes finds that time over: what has come meanwhile is read first.
const WAKING_MS = 1000;
const BUSY = 429;
const GONE = 404;
const ENDING = 503;
const ERROR = 500;

// Tells `hear` what arrives: {opened: true} when the server begins, {text, reasoning, tokens}, {note} while the answer
// pauses ("" when it goes on), {reading: {done, of, left_s}} while a long prompt is read, {usage}, {finish}, and
// {resume: {id, last}} with each event of an answer that can be resumed. `resume` continues such an answer in place of
// asking with `body`. Throws Refusal, AbortError.
export async function readAnswer(hear, { body, resume, signal }) {
  const state = { id: resume?.id ?? "", last: resume?.last ?? 0, brokenSince: null, reached: false };
  let answer = state.id ? await again(state, hear, signal) : await ask(body, signal);
  if (!state.id && answer.headers.has("x-resumable")) state.id = answer.headers.get("x-request-id") ?? "";
  for (;;) {
    state.reached = true;
    hear({ opened: true });
    if (state.id) hear({ resume: { id: state.id, last: state.last } });
    try {
      await read(answer, state, hear, signal);
      return;
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      if (!state.id) throw new Refusal(texts.errors.broken, 0);
    }
    broke(state, hear);
    await pause(AGAIN_MS, signal);
    answer = await again(state, hear, signal);
  }
}

// Has the server end an answer of that id at once: of a connection that ends it does not know whether it is to go on.
export async function endAnswer(id) {
  await request(`${PATH}/${encodeURIComponent(id)}`, { method: "DELETE", keepalive: true });
}

class Broken extends Error {}

async function ask(body, signal) {
  const answer = await request(PATH, { method: "POST", body, signal, silentMs: SILENT_MS });
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

// The rest of the answer, as soon as the server can be reached.
async function again(state, hear, signal) {
  for (;;) {
    try {
      const headers = { "Last-Event-ID": String(state.last) };
      const answer = await request(`${PATH}/${encodeURIComponent(state.id)}`, { headers, signal, silentMs: SILENT_MS });
      if (answer.ok) return answer;
      const refused = await refusal(answer);
      if (refused.status === GONE) throw new Refusal(texts.errors.gone, GONE);
      if (refused.status !== BUSY && !(refused.status === ENDING && refused.code === "shutting_down")) throw refused;
      broke(state, hear, refused);
    } catch (error) {
      if (!(error instanceof Refusal) || error.status !== 0) throw error;
      broke(state, hear, error);
    }
    await pause(AGAIN_MS, signal);
  }
}

// The connection did. Throws where that was too long ago.
function broke(state, hear, error) {
  state.brokenSince ??= performance.now();
  if (performance.now() - state.brokenSince > GIVE_UP_MS) throw error ?? new Refusal(texts.errors.broken, 0);
  hear({ note: state.reached ? texts.chat.reconnecting : texts.chat.reaching });
}

async function read(answer, state, hear, signal) {
  const parser = new EventParser();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      for (const event of parser.feed(await piece(reader, signal))) {
        state.brokenSince = null;
        if (event.data === "[DONE]") return;
        take(event, state, hear);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it has ended, or nobody reads on
  }
}

async function piece(reader, signal) {
  let timer;
  const silence = new Promise((resolve) => {
    timer = setTimeout(() => (timer = setTimeout(resolve, WAKING_MS, { done: true })), SILENT_MS);
  });
  try {
    const { done, value } = await Promise.race([reader.read(), silence]);
    if (!done) return value;
  } catch {
    signal?.throwIfAborted();
  } finally {
    clearTimeout(timer);
  }
  throw new Broken();
}

function take(event, state, hear) {
  if (event.comment !== undefined) {
    hear(readingOf(event.comment) ?? { note: event.comment === "ping" ? "" : event.comment });
    return;
  }
  if (isNew(event, state)) tell(event.data, hear);
  if (state.id && event.id) hear({ resume: { id: state.id, last: state.last } });
}

// How far the prompt is read, where a comment says so; null where it says something else.
function readingOf(comment) {
  const [found, done, of, left] = /^reading (\d+) of (\d+) tokens(?:, (\d+) s left)?$/.exec(comment) ?? [];
  if (!found) return null;
  const left_s = left === undefined ? null : Number(left);
  return { note: "", reading: { done: Number(done), of: Number(of), left_s } };
}

// Whether an event has not come before; its number is remembered.
function isNew(event, state) {
  const number = Number(event.id);
  if (event.id === "" || !Number.isSafeInteger(number)) return true;
  if (number <= state.last) return false;
  state.last = number;
  return true;
}

function tell(data, hear) {
  const value = parsed(data);
  if (value.error) throw new Refusal(texts.errors.of(value.error), ERROR, String(value.error.code));
  if (value.usage) hear({ usage: value.usage });
  const choice = value.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning } = choice.delta ?? {};
  const tokens = choice.token_ids?.length ?? 0;
  if (content || reasoning || tokens) hear({ text: content ?? "", reasoning: reasoning ?? "", tokens });
  if (choice.finish_reason) hear({ finish: choice.finish_reason });
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Refusal(texts.errors.noEvent, ERROR);
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    }
  });
}
