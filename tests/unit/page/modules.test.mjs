// Tests of what is pure in the page's scripts; `node --test` runs them.

import assert from "node:assert/strict";
import test from "node:test";
import { EventParser } from "../../../tpiedge/page/sse.js";
import * as tree from "../../../tpiedge/page/tree.js";

const STREAM =
  ': waiting for dell-1\n\nid: 1\ndata: {"a": 1}\n\ndata: two\r\ndata:lines\r\n\r\n: ping\r\n\r\n' +
  "event: x\rid: 2\rdata\r\rdata: [DONE]\n\n";
const EVENTS = [
  { comment: "waiting for dell-1" },
  { id: "1", data: '{"a": 1}' },
  { id: "", data: "two\nlines" },
  { comment: "ping" },
  { id: "2", data: "" },
  { id: "", data: "[DONE]" },
];

test("a stream means the same however it is cut", () => {
  for (let size = 1; size <= STREAM.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < STREAM.length; at += size) found.push(...parser.feed(STREAM.slice(at, at + size)));
    assert.deepEqual(found, EVENTS, `in pieces of ${size}`);
  }
});

test("an event that does not end is none", () => {
  assert.deepEqual(new EventParser().feed("data: half\n"), []);
});

function said(conversation, parent, id, role, text = id) {
  return tree.add(conversation, { id, parent, role, text }, 1);
}

function talk() {
  let conversation = tree.newConversation("c", 0);
  conversation = said(conversation, null, "q1", "user");
  conversation = said(conversation, "q1", "a1", "assistant");
  conversation = said(conversation, "a1", "q2", "user");
  return said(conversation, "q2", "a2", "assistant");
}

const shown = (conversation) => tree.path(conversation).map((node) => node.id);

test("a conversation is shown from its beginning to its end", () => {
  assert.deepEqual(shown(tree.newConversation("c", 0)), []);
  assert.deepEqual(shown(talk()), ["q1", "a1", "q2", "a2"]);
});

test("an edited message begins a branch, and the other one is still there", () => {
  const before = talk();
  const after = said(said(before, null, "q1b", "user"), "q1b", "a1b", "assistant");
  assert.deepEqual(shown(after), ["q1b", "a1b"]);
  assert.deepEqual(tree.siblings(after, "q1b"), ["q1", "q1b"]);
  assert.deepEqual(shown(tree.choose(after, "q1")), ["q1", "a1", "q2", "a2"]);
  assert.deepEqual(shown(before), ["q1", "a1", "q2", "a2"], "a change changes nothing that was there");
});

test("another answer stands in the place of the first", () => {
  const after = said(talk(), "q2", "a2b", "assistant");
  assert.deepEqual(shown(after), ["q1", "a1", "q2", "a2b"]);
  assert.deepEqual(tree.siblings(after, "a2b"), ["a2", "a2b"]);
  assert.equal(tree.change(after, "a2b", { text: "more" }).nodes.a2b.text, "more");
});

test("the model is told the branch, and first of all the settings' text", () => {
  const conversation = said(talk(), "a1", "q2b", "user");
  assert.deepEqual(tree.messagesTo(conversation, "q2b"), [
    { role: "user", content: "q1" },
    { role: "assistant", content: "a1" },
    { role: "user", content: "q2b" },
  ]);
  const told = tree.messagesTo({ ...conversation, settings: { system: " Be terse " } }, "q1");
  assert.deepEqual(told[0], { role: "system", content: "Be terse" });
  const more = tree.messagesTo(tree.change(conversation, "a1", { thought: "hm" }), "a1");
  assert.deepEqual(more.at(-1), { role: "assistant", content: "a1", reasoning_content: "hm" }, "which it continues");
});

test("a title is one short line", () => {
  assert.equal(tree.titleOf("  Hello\nthere"), "Hello");
  assert.equal(tree.titleOf("x".repeat(100)).length, 60);
});

test("what two tabs made of a conversation stays, all of it", () => {
  const base = { ...talk(), title: "before", settings: { seed: 1, top_p: 0.5 } };
  const mine = tree.change(said(base, "q1", "mine", "assistant"), "a1", { text: "changed" });
  const theirs = { ...said(base, "q1", "theirs", "assistant"), title: "renamed", settings: { seed: 2 } };
  const both = tree.merge(base, mine, theirs);
  assert.deepEqual(Object.keys(both.nodes).sort(), [...Object.keys(base.nodes), "mine", "theirs"].sort());
  assert.equal(both.nodes.a1.text, "changed");
  assert.equal(both.title, "renamed");
  assert.deepEqual(both.settings, { seed: 2 });
  assert.equal(both.chosen.q1, "mine");
  assert.deepEqual(tree.merge(base, theirs, mine).nodes, both.nodes);
  assert.deepEqual(tree.merge(base, { ...base, settings: { seed: 1 } }, theirs).settings, { seed: 2 });
  assert.deepEqual(tree.merge(undefined, base, base), base);
});

test("an answer that another tab has taken over is as that tab has it", () => {
  const base = tree.change(talk(), "a1", { text: "one", state: "running", tab: "A", resume: { id: "x", last: 1 } });
  const theirs = tree.change(base, "a1", { text: "one two", state: "done", tab: "B", resume: null });
  const mine = tree.change(base, "a1", { state: "failed", error: "superseded", resume: null });
  assert.deepEqual(tree.merge(base, mine, theirs).nodes.a1, theirs.nodes.a1);
  assert.deepEqual(tree.merge(base, theirs, base).nodes.a1, theirs.nodes.a1);
  const further = tree.change(theirs, "a1", { text: "one two three" });
  assert.deepEqual(tree.merge(theirs, further, theirs).nodes.a1, further.nodes.a1);
});
