// Tests of conversations as a file, and of files that are none.

import assert from "node:assert/strict";
import test from "node:test";
import { archived, unarchived } from "../../../tpiedge/page/archive.js";
import * as tree from "../../../tpiedge/page/tree.js";

const id = (number) => String(number).padStart(24, "0");

function talk() {
  let found = tree.newConversation(id(1), 5, { model: "phi", system: "Be brief", seed: 3 });
  found = tree.add({ ...found, title: "Foxes" }, { id: id(2), parent: null, role: "user", text: "Well?" }, 6);
  const answer = { id: id(3), parent: id(2), role: "assistant", text: "Yes", thought: "hm", state: "done", rate: 2.5 };
  found = tree.add(found, { ...answer, tab: "A", resume: null, usage: { completion_tokens: 7 } }, 7);
  return tree.add(found, { id: id(4), parent: id(2), role: "assistant", text: "N", state: "running", tab: "A" }, 8);
}

test("what is exported is imported, without what only this browser knows", () => {
  const [found] = unarchived(archived([talk()]));
  const { nodes, ...rest } = talk();
  assert.deepEqual({ ...found, nodes: {} }, { ...rest, nodes: {} });
  assert.deepEqual(Object.keys(found.nodes), Object.keys(nodes));
  assert.deepEqual(found.nodes[id(3)], {
    id: id(3), parent: id(2), role: "assistant", text: "Yes", thought: "hm", state: "done", tokens: 7, rate: 2.5,
  });
  assert.equal(found.nodes[id(4)].state, "interrupted");
  assert.deepEqual(tree.path(found).map(({ text }) => text), ["Well?", "N"]);
});

test("any number of conversations is imported", () => {
  const many = Array.from({ length: 5001 }, (_, number) => ({ ...talk(), id: id(number) }));
  assert.equal(unarchived(archived(many)).length, 5001);
});

// The text of a file in which something of the first conversation is otherwise.
function spoilt(change) {
  const file = JSON.parse(archived([talk()]));
  change(file.conversations[0], file);
  return JSON.stringify(file);
}

const refused = {
  "no JSON": ["{", /no conversations of tpiedge/],
  "another file": ['{"conversations": []}', /no conversations of tpiedge/],
  "nothing": ["null", /no conversations of tpiedge/],
  "a newer file": [spoilt((_, file) => (file.version = 2)), /newer tpiedge/],
  "a conversation that is none": [spoilt((_, file) => file.conversations.push(7)), /conversation 2 of this file/],
  "an id that is none": [spoilt((one) => (one.id = "../x")), /conversation 1/],
  "no title": [spoilt((one) => delete one.title), /conversation 1/],
  "a message of nobody": [spoilt((one) => (one.nodes[id(2)].role = "system")), /conversation 1/],
  "a message that is no text": [spoilt((one) => (one.nodes[id(2)].text = {})), /conversation 1/],
  "a circle": [spoilt((one) => (one.nodes[id(2)].parent = id(3))), /conversation 1/],
};
for (const [name, [text, message]] of Object.entries(refused)) {
  test(`refused: ${name}`, () => assert.throws(() => unarchived(text), message));
}

test("what does not belong there is left out", () => {
  const [found] = unarchived(spoilt((one) => {
    one.chosen = { "": id(3), [id(2)]: id(3), [id(3)]: "x" };
    one.settings = { seed: "1", system: "s", other: 1 };
    Object.assign(one.nodes[id(3)], { usage: { pauses: 1 }, resume: { id: "x" }, state: "running", rate: null });
  }));
  assert.deepEqual(found.chosen, { [id(2)]: id(3) });
  assert.deepEqual(found.settings, { system: "s" });
  assert.deepEqual(Object.keys(found.nodes[id(3)]).sort(), "id parent role state text thought tokens".split(" "));
  assert.equal(found.nodes[id(3)].state, "interrupted");
});
