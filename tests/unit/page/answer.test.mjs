// Tests of an answer's way over several connections, before a server that says what it is told to.

import assert from "node:assert/strict";
import test from "node:test";

globalThis.sessionStorage = { getItem: () => null };
globalThis.document = { baseURI: "http://192.0.2.1:8080/" };
const { readAnswer } = await import("../../../tpiedge/page/answer.js");

const chunk = (delta, more) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, ...more }] })}\n\n`;
const numbered = (number, event) => `id: ${number}\n${event}`;
const DONE = "data: [DONE]\n\n";
const RESUMABLE = { "x-resumable": "yes", "x-request-id": "chatcmpl-1" };

// One answer of the server: `pieces` of its body, then its end, or that of the connection.
function answer(pieces, { headers = {}, breaks = false, status = 200 } = {}) {
  const encoder = new TextEncoder();
  let next = 0;
  const body = new ReadableStream({
    pull(control) {
      if (next < pieces.length) control.enqueue(encoder.encode(pieces[next++]));
      else if (breaks) control.error(new TypeError("network error"));
      else control.close();
    },
  });
  return new Response(body, { status, headers });
}

function refused(status, code) {
  return answer([JSON.stringify({ error: { message: `refused: ${code}`, code } })], { status });
}

// What is heard of the answers of a server that gives these one after the other, and what it was asked.
async function heard(answers, how = { body: { model: "m" } }) {
  const asked = [];
  const told = [];
  globalThis.fetch = async (address, options) => {
    asked.push([options.method, address.pathname, options.headers["Last-Event-ID"]]);
    const given = answers.shift();
    if (given instanceof Error) throw given;
    return given;
  };
  let error = null;
  await readAnswer((what) => told.push(what), how).catch((thrown) => (error = thrown));
  const text = told.map((what) => what.text ?? "").join("");
  return { asked, told, text, error };
}

test("text, reasoning, tokens, usage and the reason of the end", async () => {
  const { told, error } = await heard([
    answer([
      ": ping\n\n",
      chunk({ role: "assistant", content: "" }, { token_ids: [] }),
      chunk({ reasoning_content: "hm" }, { token_ids: [1] }),
      ": waiting for dell-1\n\n",
      chunk({ content: "Hello" }, { token_ids: [2, 3] }),
      chunk({}, { finish_reason: "stop" }),
      `data: ${JSON.stringify({ choices: [], usage: { completion_tokens: 3 } })}\n\n`,
      DONE,
    ]),
  ]);
  assert.equal(error, null);
  assert.deepEqual(told, [
    { opened: true },
    { note: "" },
    { text: "", reasoning: "hm", tokens: 1 },
    { note: "waiting for dell-1" },
    { text: "Hello", reasoning: "", tokens: 2 },
    { finish: "stop" },
    { usage: { completion_tokens: 3 } },
  ]);
});

test("an answer that is not recorded ends with its connection", async () => {
  for (const breaks of [false, true]) {
    const { error, text, asked } = await heard([answer([chunk({ content: "half" })], { breaks })]);
    assert.match(error.message, /was lost before the answer's end/);
    assert.equal(text, "half");
    assert.equal(asked.length, 1);
  }
});

test("a recorded one goes on after the last event that came, whatever happens between", async () => {
  const { error, text, asked } = await heard([
    answer([numbered(1, chunk({ content: "a" })), numbered(2, chunk({ content: "b" }))], {
      headers: RESUMABLE,
      breaks: true,
    }),
    new TypeError("connection refused"),
    refused(503, "shutting_down"),
    refused(429, "queue_full"),
    answer([numbered(2, chunk({ content: "b" })), numbered(3, chunk({ content: "c" }))], { breaks: true }),
    answer([numbered(4, chunk({ content: "d" })), numbered(5, DONE)]),
  ]);
  assert.equal(error, null);
  assert.equal(text, "abcd");
  const path = "/v1/chat/completions/chatcmpl-1";
  assert.deepEqual(asked, [
    ["POST", "/v1/chat/completions", undefined],
    ...["2", "2", "2", "2", "3"].map((last) => ["GET", path, last]),
  ]);
});

test("a recorded one is taken up where it was left", async () => {
  const how = { resume: { id: "chatcmpl-1", last: 7 } };
  const { told, asked } = await heard([answer([numbered(8, chunk({ content: "h" })), numbered(9, DONE)])], how);
  assert.deepEqual(asked, [["GET", "/v1/chat/completions/chatcmpl-1", "7"]]);
  assert.deepEqual(told.at(-1), { resume: { id: "chatcmpl-1", last: 8 } });
});

// Of which nothing comes after `pieces`, nor its end.
function silent(pieces, headers) {
  const encoder = new TextEncoder();
  const start = (control) => pieces.forEach((piece) => control.enqueue(encoder.encode(piece)));
  return new Response(new ReadableStream({ start }), { headers });
}

test("a silent connection is a broken one", async (context) => {
  const later = globalThis.setTimeout;
  context.mock.method(globalThis, "setTimeout", (act, ms, ...values) => later(act, ms / 100, ...values));
  const { error, text, asked } = await heard([
    silent([numbered(1, chunk({ content: "a" }))], RESUMABLE),
    answer([numbered(2, chunk({ content: "b" })), numbered(3, DONE)]),
  ]);
  assert.equal(error, null);
  assert.equal(text, "ab");
  assert.deepEqual(asked.at(-1), ["GET", "/v1/chat/completions/chatcmpl-1", "1"]);
  const unrecorded = await heard([silent([chunk({ content: "half" })], {})]);
  assert.match(unrecorded.error.message, /was lost before the answer's end/);
});

test("what is gone, what fails and what is no answer are said", async () => {
  const how = { resume: { id: "chatcmpl-1", last: 7 } };
  const cases = [
    [[refused(404, "not_found")], how, /no longer has the rest/],
    [[refused(409, "taken")], how, /refused: taken/],
    [[refused(400, "invalid_value")], undefined, /refused: invalid_value/],
    [[answer(["<html>"], { status: 502 })], undefined, /status 502/],
    [[new TypeError("connection refused")], undefined, /Cannot reach the server/],
    [[answer(['data: {"error": {"message": "node 2 was lost"}}\n\n'])], undefined, /node 2 was lost/],
    [[answer(["data: {\n\n"])], undefined, /invalid event/],
  ];
  for (const [answers, asked, message] of cases) assert.match((await heard(answers, asked)).error.message, message);
});

test("whoever stops hears no more", async () => {
  const stop = new AbortController();
  const body = new ReadableStream({
    pull(control) {
      control.enqueue(new TextEncoder().encode(chunk({ content: "x" })));
      stop.abort();
      control.error(stop.signal.reason);
    },
  });
  const { error } = await heard([new Response(body)], { body: {}, signal: stop.signal });
  assert.equal(error.name, "AbortError");
});

test("comments say how far a long prompt is read, or why the answer pauses", async () => {
  const comments = [": ping", ": reading 300 of 900 tokens", ": reading 600 of 900 tokens, 3 s left", ": reading on"];
  const { told } = await heard([answer([...comments.map((one) => `${one}\n\n`), DONE])]);
  assert.deepEqual(
    told.filter(({ note }) => note !== undefined),
    [
      { note: "" },
      { note: "", reading: { done: 300, of: 900, left_s: null } },
      { note: "", reading: { done: 600, of: 900, left_s: 3 } },
      { note: "reading on" },
    ],
  );
});
