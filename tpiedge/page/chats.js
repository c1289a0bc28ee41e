// The state of all chats: sends messages, reads answers whatever view is shown, branches, and saves (SAVE_MS).

import { endAnswer, readAnswer } from "./answer.js";
import { Refusal } from "./api.js";
import { archived, unarchived } from "./archive.js";
import { ofBrowser, ofTab } from "./kept.js";
import { Library } from "./library.js";
import { Served } from "./served.js";
import { texts } from "./texts.js";
import { add, change, choose, messagesTo, newConversation, path, siblings, titleOf } from "./tree.js";

const SAVE_MS = 1000;
// Tokens that come in less are counted, but not as so many a second.
const MEASURED_MS = 200;
const SETTINGS = "tpiedge.settings";
const TAB = "tpiedge.tab";
const NO_ANSWER = 0;
const NO_KEY = 401;
const UNREACHABLE = "unreachable";
// Why an answer failed that would come now.
const PASSING = ["unavailable", "worker_lost", "child_lost", "shutting_down", UNREACHABLE];

// `running` has what is shown beside an answer while it is being made, by the id of its node: `conversation` the id of
// where it is, `phase` ("sent",
// "opened", "answering"), `note` why it pauses, `reading` how far a long prompt is read, `tokens` so far, of which
// `early` came with the first, and when, by performance.now(): `since` its request, `first` and `last` tokens. `stop`
// ends it; `resume` names it where it can be resumed.
class Chats extends EventTarget {
  running = new Map();
  loaded = false;
  #library = new Library(() => this.#changed(), (conversation) => this.#stopAll(conversation));
  #served = new Served(() => this.#answered());
  // This tab: another one does not take an unfinished answer for its own.
  #tab = "";

  async load() {
    this.#tab = ofTab.get(TAB) || newId();
    this.#takeName();
    await this.#library.load();
    this.loaded = true;
    document.addEventListener("visibilitychange", () => document.hidden || this.findModel()); // it may be another now
    this.#takeUp();
    await this.findModel();
  }

  get conversations() {
    return this.#library.conversations;
  }

  // The models that can be chosen, as the server describes them; empty before they are known.
  get models() {
    return this.#served.models;
  }

  // The one that answers with these settings: the served one where theirs is not offered. Null before it is known.
  modelOf(settings) {
    return this.#served.model(settings.model);
  }

  // What is wrong with the server, for the user to read.
  get problem() {
    return this.#served.problem;
  }

  // Whether that is a key that it wants.
  get keyless() {
    return this.#served.keyless;
  }

  // Why the server would not answer now, or at once, for the user to read; empty where it would.
  get unready() {
    return this.#served.unready;
  }

  // Whether it would, as far as is known now.
  get ready() {
    return this.#served.ready;
  }

  // The ids of the conversations in which an answer is being made.
  get busy() {
    return new Set([...this.running.values()].map(({ conversation }) => conversation));
  }

  // That this browser does not keep what is said, for the user to read.
  get notice() {
    return this.#library.notice || (ofBrowser.refused || ofTab.refused ? texts.chat.keepsNothing : "");
  }

  async findModel() {
    await this.#served.find();
  }

  // The latest first.
  list() {
    return [...this.conversations.values()].sort((one, other) => other.created - one.created);
  }

  // The settings that a new conversation begins with.
  usualSettings() {
    try {
      return JSON.parse(ofBrowser.get(SETTINGS) || "{}");
    } catch {
      return {}; // of another version of the page
    }
  }

  setUsual(settings) {
    ofBrowser.set(SETTINGS, JSON.stringify(settings));
    this.#changed();
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

  // Whether an answer has a beginning and no end, of which `model` can write more.
  canExtend(node, model) {
    const unfinished = node.finish === "length" || ["stopped", "interrupted", "failed"].includes(node.state);
    return node.text !== "" && unfinished && !this.fills(node, model) && !this.running.has(node.id);
  }

  // Whether an answer ended where the context of `model` does, or later.
  fills({ usage }, model) {
    return usage?.total_tokens >= model?.context_length;
  }

  // Has the model write on where the answer `node` ended.
  extend(id, node) {
    const { before = 0, usage, tokens = 0 } = this.conversations.get(id).nodes[node];
    const begun = { state: "running", tab: this.#tab, finish: null, usage: null, tokens: 0 };
    begun.before = before + (usage?.completion_tokens ?? tokens);
    const conversation = change(this.conversations.get(id), node, begun);
    this.#library.put(conversation);
    this.#run(id, node, { body: { ...this.#body(conversation, node), continue_final_message: true } });
  }

  show(id, node) {
    this.#library.put(choose(this.conversations.get(id), node));
  }

  // The ids of all that stands in the place of `node`, but for other tries that gave nothing.
  versions(id, node) {
    const { nodes } = this.conversations.get(id);
    const gave = (one) => one === node || nodes[one].state !== "failed" || nodes[one].text !== "";
    return siblings(this.conversations.get(id), node).filter(gave);
  }

  stop(node) {
    this.running.get(node)?.stop.abort();
  }

  // Whether the server may have more of an answer that nobody here reads.
  canGoOn(node) {
    return Boolean(node.resume) && !this.running.has(node.id);
  }

  // Reads on where the answer `node` was left, though another tab began it.
  goOn(id, node) {
    const conversation = change(this.conversations.get(id), node, { tab: this.#tab });
    this.#library.put(conversation);
    this.#run(id, node, { resume: conversation.nodes[node].resume });
  }

  // Whether this tab had the answer made.
  isOurs(node) {
    return node.tab === this.#tab;
  }

  // The node of the answer that is being made in what the conversation shows; undefined where none is.
  answering(id) {
    const last = path(this.conversations.get(id) ?? newConversation("", 0)).at(-1);
    return last && this.running.has(last.id) ? last.id : undefined;
  }

  // Nothing where another tab has deleted it meanwhile.
  rename(id, title) {
    this.#alter(id, { title });
  }

  // For the answers of this conversation from now on; nothing where another tab has deleted it meanwhile.
  set(id, settings) {
    this.#alter(id, { settings });
  }

  remove(id) {
    this.#stopAll(this.conversations.get(id));
    this.#library.remove(id);
  }

  removeAll() {
    for (const id of [...this.conversations.keys()]) this.remove(id);
  }

  // All conversations, as the text of a file.
  exported() {
    return archived(this.conversations.values());
  }

  // Takes the conversations of such a text that are not here. Returns how many it took and how many it has. Throws
  // Error, for the user to read.
  import(text) {
    const all = unarchived(text);
    const added = all.filter(({ id }) => !this.conversations.has(id));
    for (const conversation of added) this.#library.put(conversation);
    return { added: added.length, all: all.length };
  }

  #say(conversation, parent, text) {
    const node = { id: newId(), parent, role: "user", text };
    this.#answer(add(conversation, node, Date.now()), node.id);
  }

  #answer(conversation, parent) {
    const node = { id: newId(), parent, role: "assistant", text: "", state: "running", tab: this.#tab };
    const next = add(conversation, node, Date.now());
    this.#library.put(next);
    this.#run(next.id, node.id, { body: this.#body(next, parent) });
  }

  #body(conversation, parent) {
    const { model, temperature, top_p, max_tokens, seed } = conversation.settings;
    return {
      messages: messagesTo(conversation, parent),
      ...given({ model, temperature, top_p, max_tokens, seed }),
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
    };
  }

  // Answers of this tab whose end is missing: those that can be go on. Those that were under way when the page was
  // closed and cannot be are interrupted.
  #takeUp() {
    for (const { id, nodes } of [...this.conversations.values()]) {
      for (const node of Object.values(nodes)) {
        if (!["running", "unread"].includes(node.state) || !this.isOurs(node) || this.running.has(node.id)) continue;
        if (node.resume) this.#run(id, node.id, { resume: node.resume });
        else this.#change(id, node.id, { state: "interrupted" });
      }
    }
  }

  async #run(id, node, how) {
    const stop = new AbortController();
    const live = { conversation: id, phase: "sent", since: performance.now(), note: "", tokens: 0, stop };
    Object.assign(live, { first: null, last: null });
    live.resume = how.resume;
    this.running.set(node, live);
    this.#changed();
    let end;
    let silent = false;
    let superseded = false;
    try {
      const hear = (what) => this.#hear(id, node, live, what);
      if (how.resume) await readAnswer(hear, { resume: how.resume, signal: stop.signal });
      else await this.#ask(id, node, how.body, (body) => readAnswer(hear, { body, signal: stop.signal }));
      end = { state: "done", resume: null };
    } catch (error) {
      silent = error instanceof Refusal && error.status === NO_ANSWER;
      superseded = error.code === "superseded";
      end = endOf(error, live, silent);
    }
    this.running.delete(node);
    // Where nobody hears of it, it ends by itself, later.
    if (live.resume && end.state === "stopped") endAnswer(live.resume.id).catch(() => {});
    if (this.#reads(id, node) && !superseded) this.#change(id, node, { ...end, ...speed(live) });
    else this.#changed(); // what becomes of it, the tab says that reads it
    if (end.state !== "done" || this.unready) this.findModel(); // which goes on until the server is back, and ready
  }

  // Has `read` read the answer of a model that the server has: it may have others than it was asked for last.
  async #ask(id, node, body, read) {
    for (;;) {
      const model = await this.#served.name(body.model);
      this.#change(id, node, { model }, SAVE_MS);
      try {
        await read({ ...body, model });
        return;
      } catch (error) {
        if (error.code !== "model_not_found") throw error;
        await this.findModel();
        if (this.modelOf(body).id === model) throw error;
      }
    }
  }

  #hear(id, node, live, what) {
    if (what.resume) live.resume = what.resume;
    if (what.opened) Object.assign(live, { phase: live.first === null ? "opened" : "answering", note: "" });
    if (what.note !== undefined) live.note = what.note;
    if (what.reading) live.reading = what.reading;
    if (!this.#reads(id, node)) return;
    const values = {};
    if (what.text !== undefined) {
      const { text, thought = "" } = this.conversations.get(id).nodes[node];
      Object.assign(values, { text: text + what.text }, what.reasoning && { thought: thought + what.reasoning });
      live.tokens += what.tokens;
      live.last = performance.now();
      if (live.first === null) Object.assign(live, { first: live.last, early: what.tokens });
      Object.assign(live, { phase: "answering", note: "" });
    }
    for (const name of ["usage", "finish", "resume"]) if (what[name] !== undefined) values[name] = what[name];
    // That it can be resumed is known first, and must be known after a reload.
    this.#change(id, node, values, what.resume?.last === 0 ? 0 : SAVE_MS);
  }

  // A tab that the browser makes as a copy of this one has all that is kept of it: its name is kept only while nobody
  // sees the page, which the browser may close then without a word.
  #takeName() {
    const keep = (hidden) => ofTab.set(TAB, hidden ? this.#tab : "");
    keep(document.hidden);
    document.addEventListener("visibilitychange", () => keep(document.hidden));
    addEventListener("pagehide", () => keep(true));
    addEventListener("pageshow", () => keep(document.hidden));
  }

  #alter(id, values) {
    const conversation = this.conversations.get(id);
    if (conversation) this.#library.put({ ...conversation, ...values });
  }

  // Whether this tab reads the answer still, and no other one has taken it over.
  #reads(id, node) {
    const found = this.conversations.get(id)?.nodes[node];
    return found !== undefined && this.isOurs(found);
  }

  #change(id, node, values, later = 0) {
    const conversation = this.conversations.get(id);
    if (conversation) this.#library.put(change(conversation, node, values), later);
  }

  #stopAll(conversation) {
    for (const node of Object.keys(conversation.nodes)) this.stop(node);
  }

  // The server said which model it has, or did not.
  #answered() {
    if (!this.problem) this.#takeUp();
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

// The fields of a node whose answer ended so. Of one that the server may have still it is kept which one it is.
function endOf(error, live, silent) {
  if (live.stop.signal.aborted) return { state: "stopped", resume: null };
  if (live.resume && (silent || error.status === NO_KEY)) return { state: "unread", error: error.message };
  return { state: "failed", error: error.message, code: error.code || (silent ? UNREACHABLE : ""), resume: null };
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

// Whether an answer failed for a reason that may hold no longer.
export function passes({ state, code, text }) {
  return state === "failed" && text === "" && PASSING.includes(code);
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
