// A conversation is a tree: an edited message or a repeated answer begins a branch, and nothing is lost.
// Pure: every change makes a new conversation, which shares what did not change.
//
// A conversation has `nodes` by their ids; a node has `parent` (null at the root), `role` ("user", "assistant") and
// `text`. `chosen` says by the id of a node ("" for the root) which of those that follow it is shown.

const ROOT = "";

export function newConversation(id, now, settings = {}) {
  return { id, title: "", created: now, updated: now, settings, nodes: {}, chosen: {} };
}

// What is shown: from the first message to the last.
export function path(conversation) {
  const found = [];
  let id = conversation.chosen[ROOT];
  while (id !== undefined) {
    found.push(conversation.nodes[id]);
    id = conversation.chosen[id];
  }
  return found;
}

// The ids of the nodes in whose place `id` stands, itself among them, in the order in which they were made.
export function siblings(conversation, id) {
  const { parent } = conversation.nodes[id];
  return Object.values(conversation.nodes).filter((node) => node.parent === parent).map((node) => node.id);
}

// With a further node, which is shown.
export function add(conversation, node, now) {
  const nodes = { ...conversation.nodes, [node.id]: node };
  const chosen = { ...conversation.chosen, [node.parent ?? ROOT]: node.id };
  return { ...conversation, nodes, chosen, updated: now };
}

// With other values of a node's fields.
export function change(conversation, id, values) {
  const node = { ...conversation.nodes[id], ...values };
  return { ...conversation, nodes: { ...conversation.nodes, [id]: node } };
}

// With `id` shown in place of its siblings.
export function choose(conversation, id) {
  const { parent } = conversation.nodes[id];
  return { ...conversation, chosen: { ...conversation.chosen, [parent ?? ROOT]: id } };
}

// What two tabs made of `base` (undefined: of nothing), together: what `mine` changed since is mine, all else `stored`.
// What is shown stays what this tab shows.
export function merge(base, mine, stored) {
  const both = (name) => overlaid(base?.[name] ?? {}, mine[name], stored[name]);
  return {
    ...overlaid(base ?? {}, mine, stored),
    updated: Math.max(mine.updated, stored.updated),
    settings: both("settings"),
    nodes: { ...both("nodes"), ...takenOver(base?.nodes ?? {}, stored.nodes) },
    chosen: { ...stored.chosen, ...mine.chosen },
  };
}

// The answers that another tab reads since then: they are as it has them.
function takenOver(base, stored) {
  return Object.fromEntries(Object.entries(stored).filter(([id, { tab }]) => base[id] && tab !== base[id].tab));
}

// `stored` with those fields of `mine` that are others than in `base`.
function overlaid(base, mine, stored) {
  const result = { ...stored };
  for (const name of Object.keys({ ...base, ...mine })) {
    if (mine[name] === base[name]) continue;
    if (name in mine) result[name] = mine[name];
    else delete result[name];
  }
  return result;
}

// The messages for an answer to `id`, or, where that is one, for more of it, as the API wants them.
export function messagesTo(conversation, id) {
  const found = [];
  for (let next = id; next !== null; next = conversation.nodes[next].parent) {
    const { role, text, thought } = conversation.nodes[next];
    found.unshift({ role, content: text, ...(next === id && thought && { reasoning_content: thought }) });
  }
  const system = conversation.settings.system?.trim();
  return system ? [{ role: "system", content: system }, ...found] : found;
}

// What a conversation is called that begins with `text`.
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}
