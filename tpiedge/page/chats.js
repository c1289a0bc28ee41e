// The conversations of this browser, and the answers that are being made: they go on whatever view is shown.

import { endAnswer, readAnswer } from "./answer.js";
import { json } from "./api.js";
import { ConversationStore } from "./store.js";
import { texts } from "./texts.js";
import { add, change, choose, messagesTo, newConversation, path, siblings, titleOf } from "./tree.js";

const SAVE_MS = 1000;
// Tokens that come in less are counted, but not as so many a second.
const MEASURED_MS = 200;
const SETTINGS = "tpiedge.settings";
// This tab: another one does not take an unfinished answer for its own.
const TAB = (sessionStorage["tpiedge.tab"] ??= newId());

// `running` has what is shown beside an answer while it is being made, by the id of its node: `phase` ("sent",
// "opened", "answering"), `note` why it pauses, `tokens` so far, of which `early` came with the first, and when, by
// performance.now(): `since` its request, `first` and `last` tokens. `stop` ends it; `resume` names it where it can be
// resumed.
class Chats extends EventTarget {
  conversations = new Map();
  running = new Map();
  model = null;
  // What is wrong with this browser or the server, for the user to read.
  problem = "";
  loaded = false;
  #store = new ConversationStore(
    () => this.#set(() => (this.problem = texts.chat.notKept)),
    (id) => this.#reload(id),
  );
  #unsaved = new Map();

  async load() {
    for (const found of await this.#store.all()) this.conversations.set(found.id, found);
    this.#set(() => (this.loaded = true));
    document.addEventListener("visibilitychange", () => this.#saveAll()); // on a phone nothing else may follow
    for (const conversation of this.conversations.values()) this.#takeUp(conversation);
    await this.findModel();
  }

  async findModel() {
    try {
      const [model] = (await json("v1/models")).data;
      this.#set(() => ((this.model = model), (this.problem = "")));
    } catch (error) {
      this.#set(() => (this.problem = error.message));
    }
  }

  // The latest first.
  list() {
    return [...this.conversations.values()].sort((one, other) => other.created - one.created);
  }

  // The settings that a new conversation begins with.
  usualSettings() {
    try {
      return JSON.parse(localStorage[SETTINGS] ?? "{}");
    } catch {
      return {};
    }
  }

  // Says `text` after what the conversation shows, or in a new one. Returns the conversation's id.
  send(id, text, settings) {
    let conversation = this.conversations.get(id) ?? {
      ...newConversation(newId(), Date.now(), settings),
      title: titleOf(text),
    };
    const parent = path(conversation).at(-1)?.id ?? null;
    this.#say(conversation, parent, text);
    return conversation.id;
  }

  // Says `text` in place of the message `node`.
  edit(id, node, text) {
    const conversation = this.conversations.get(id);
    this.#say(conversation, conversation.nodes[node].parent, text);
  }

  // Makes another answer in place of `node`.
  regenerate(id, node) {
    const conversation = this.conversations.get(id);
    this.#answer(conversation, conversation.nodes[node].parent);
  }

  show(id, node) {
    this.#keep(choose(this.conversations.get(id), node));
  }

  // The ids of all that stands in the place of `node`.
  versions(id, node) {
    return siblings(this.conversations.get(id), node);
  }

  stop(node) {
    this.running.get(node)?.stop.abort();
  }

  // The node of the answer that is being made in what the conversation shows; undefined where none is.
  answering(id) {
    const last = path(this.conversations.get(id) ?? newConversation("", 0)).at(-1);
    return last && this.running.has(last.id) ? last.id : undefined;
  }

  rename(id, title) {
    this.#keep({ ...this.conversations.get(id), title });
  }

  set(id, settings) {
    try {
      localStorage[SETTINGS] = JSON.stringify(settings);
    } catch {
      this.problem = texts.chat.notKept;
    }
    const conversation = this.conversations.get(id);
    if (conversation) this.#keep({ ...conversation, settings });
    else this.#set(() => {});
  }

  remove(id) {
    for (const node of Object.keys(this.conversations.get(id).nodes)) this.stop(node);
    this.#set(() => this.conversations.delete(id));
    this.#unsaved.delete(id);
    this.#store.remove(id);
  }

  #say(conversation, parent, text) {
    const node = { id: newId(), parent, role: "user", text };
    this.#answer(add(conversation, node, Date.now()), node.id);
  }

  #answer(conversation, parent) {
    const node = { id: newId(), parent, role: "assistant", text: "", state: "running", tab: TAB };
    const next = add(conversation, node, Date.now());
    this.#keep(next);
    this.#run(next.id, node.id, { body: this.#body(next, parent) });
  }

  #body(conversation, parent) {
    const { temperature, top_p, max_tokens, seed } = conversation.settings;
    return {
      model: this.model?.id ?? "",
      messages: messagesTo(conversation, parent),
      ...given({ temperature, top_p, max_tokens, seed }),
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
    };
  }

  // Answers that were under way when the page was closed: those that can be go on.
  #takeUp(conversation) {
    for (const node of Object.values(conversation.nodes)) {
      if (node.state !== "running" || node.tab !== TAB || this.running.has(node.id)) continue;
      if (node.resume) this.#run(conversation.id, node.id, { resume: node.resume });
      else this.#keep(change(this.conversations.get(conversation.id), node.id, { state: "interrupted" }));
    }
  }

  async #run(id, node, how) {
    const stop = new AbortController();
    const live = { phase: "sent", since: performance.now(), note: "", tokens: 0, first: null, last: null, stop };
    this.#set(() => this.running.set(node, live));
    let end;
    try {
      if (!this.model) await this.#needModel(how);
      await readAnswer((what) => this.#hear(id, node, live, what), { ...how, signal: stop.signal });
      end = { state: "done" };
    } catch (error) {
      end = stop.signal.aborted ? { state: "stopped" } : { state: "failed", error: error.message };
    }
    this.running.delete(node);
    // Where nobody hears of it, it ends by itself, later.
    if (live.resume && end.state === "stopped") endAnswer(live.resume.id).catch(() => {});
    const conversation = this.conversations.get(id);
    if (conversation) this.#keep(change(conversation, node, { ...end, ...speed(live), resume: null }));
  }

  async #needModel(how) {
    await this.findModel();
    if (!this.model) throw new Error(this.problem);
    if (how.body) how.body.model = this.model.id;
  }

  #hear(id, node, live, what) {
    if (what.resume) live.resume = what.resume;
    const conversation = this.conversations.get(id);
    if (!conversation) return;
    if (what.opened) Object.assign(live, { phase: live.first === null ? "opened" : "answering", note: "" });
    if (what.note !== undefined) live.note = what.note;
    const values = {};
    if (what.text !== undefined) {
      const { text, thought = "" } = conversation.nodes[node];
      Object.assign(values, { text: text + what.text }, what.thought && { thought: thought + what.thought });
      live.tokens += what.tokens;
      live.last = performance.now();
      if (live.first === null) Object.assign(live, { first: live.last, early: what.tokens });
      Object.assign(live, { phase: "answering", note: "" });
    }
    for (const name of ["usage", "finish", "resume"]) if (what[name] !== undefined) values[name] = what[name];
    // That it can be resumed is known first, and must be known after a reload.
    this.#keep(change(conversation, node, values), what.resume?.last === 0 ? 0 : SAVE_MS);
  }

  // Shows the conversation, and saves it within `later` ms.
  #keep(conversation, later = 0) {
    this.#set(() => this.conversations.set(conversation.id, conversation));
    const { id } = conversation;
    if (later === 0) this.#save(id);
    else if (!this.#unsaved.has(id)) this.#unsaved.set(id, setTimeout(() => this.#save(id), later));
  }

  #save(id) {
    clearTimeout(this.#unsaved.get(id));
    this.#unsaved.delete(id);
    this.#store.put(this.conversations.get(id));
  }

  #saveAll() {
    for (const id of this.#unsaved.keys()) this.#save(id);
  }

  // Another tab changed it.
  async #reload(id) {
    const here = this.conversations.get(id);
    if (here && Object.keys(here.nodes).some((node) => this.running.has(node))) return;
    const found = await this.#store.get(id);
    this.#set(() => (found ? this.conversations.set(id, found) : this.conversations.delete(id)));
  }

  #set(act) {
    act();
    this.dispatchEvent(new Event("change"));
  }
}

// What is known of how fast the answer came: seconds to its first token, tokens per second after it.
function speed(live) {
  if (live.first === null) return {};
  return { first_s: (live.first - live.since) / 1000, tokens: live.tokens, rate: rateOf(live) };
}

// Tokens per second after the first ones, of an answer as in `running`; null where it is too early to tell.
export function rateOf({ first, last, tokens, early }) {
  const ms = last - first;
  return first === null || ms < MEASURED_MS ? null : (1000 * (tokens - early)) / ms;
}

function given(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && value !== null));
}

// randomUUID is only for pages that came over https or from this computer.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const chats = new Chats();
