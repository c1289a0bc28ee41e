// Exports conversations to a file, and imports and checks such a file. Pure.

import { texts } from "./texts.js";

const KIND = "tpiedge conversations";
const VERSION = 1;
const ID = /^[0-9a-f]{24}$/;
const ROLES = ["user", "assistant"];
const ENDED = ["done", "stopped", "interrupted", "failed"];
const CONVERSATION = { id: "string", title: "string", created: "number", updated: "number" };
const SETTINGS = {
  model: "string", system: "string", temperature: "number", top_p: "number", max_tokens: "number", seed: "number",
};
const QUESTION = { id: "string", parent: "string", role: "string", text: "string" };
const ANSWER = {
  ...QUESTION, thought: "string", model: "string", state: "string", error: "string", code: "string",
  finish: "string", tokens: "number", before: "number", rate: "number", first_s: "number",
};

// The text of a file that has them.
export function archived(conversations) {
  return JSON.stringify({ kind: KIND, version: VERSION, conversations: [...conversations].map(plain) });
}

// The conversations of such a text. Throws Error, for the user to read, where it has none or a wrong one.
export function unarchived(text) {
  const file = parsed(text);
  if (file?.kind !== KIND || !Array.isArray(file.conversations)) throw new Error(texts.chat.noArchive);
  if (file.version !== VERSION) throw new Error(texts.chat.newerArchive);
  return file.conversations.map((one, index) => {
    try {
      return checked(one);
    } catch {
      throw new Error(texts.chat.wrongArchive(index + 1));
    }
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// Without what only this browser or this server knows.
function plain({ nodes, settings, chosen, ...rest }) {
  const all = Object.values(nodes).map((node) => {
    const tokens = node.usage?.completion_tokens ?? node.tokens;
    return [node.id, { ...picked({ ...node, tokens }, ANSWER), parent: node.parent }];
  });
  return { ...picked(rest, CONVERSATION), settings, chosen, nodes: Object.fromEntries(all) };
}

function checked(value) {
  const nodes = {};
  for (const [id, node] of Object.entries(value.nodes)) {
    const { parent } = node;
    need(ID.test(id) && node.id === id && ROLES.includes(node.role) && typeof node.text === "string");
    need(parent === null || Object.hasOwn(nodes, parent)); // it comes after what it answers: no circles
    nodes[id] = { ...picked(node, node.role === "user" ? QUESTION : ANSWER), parent };
    if (node.role === "assistant" && !ENDED.includes(node.state)) nodes[id].state = "interrupted";
  }
  const found = picked(value, CONVERSATION);
  need(ID.test(found.id) && Object.keys(CONVERSATION).every((name) => name in found));
  const chosen = Object.entries(value.chosen).filter(([at, id]) => Object.hasOwn(nodes, id) &&
    (nodes[id].parent ?? "") === at);
  return { ...found, settings: picked(value.settings, SETTINGS), nodes, chosen: Object.fromEntries(chosen) };
}

function need(holds) {
  if (!holds) throw new TypeError();
}

// The fields of `value` that have these types.
function picked(value, types) {
  const fits = ([name, type]) => typeof value[name] === type && (type !== "number" || Number.isFinite(value[name]));
  return Object.fromEntries(Object.entries(types).filter(fits).map(([name]) => [name, value[name]]));
}
