// Saves conversations, and keeps them in step with other tabs. They are kept in the browser's database, which the other
// tabs change, too: what was changed here since it was last kept or seen is put into what is there by then, so nothing
// of either is lost.

import { ConversationStore } from "./store.js";
import { texts } from "./texts.js";
import { merge } from "./tree.js";

export class Library {
  conversations = new Map();
  // That this browser does not keep them, for the user to read; empty where it does.
  notice = "";
  #changed;
  #removed;
  #store = new ConversationStore(
    (keeps) => this.#tell(keeps ? texts.chat.notKept : texts.chat.keepsNothing),
    (id) => this.#store.look(id, (stored) => this.#seen(id, stored)),
  );
  // By id: what is known to be in the database, and the timers of what is to be saved.
  #kept = new Map();
  #unsaved = new Map();
  // The ids of those that were deleted here: what is on its way to the database or from it does not bring them back.
  #deleted = new Set();

  // `changed` is called whenever conversations or the notice are others; `removed` with a conversation that another
  // tab has deleted.
  constructor(changed, removed) {
    this.#changed = changed;
    this.#removed = removed;
  }

  async load() {
    for (const found of await this.#store.all()) {
      this.#kept.set(found.id, found);
      this.conversations.set(found.id, found);
    }
    document.addEventListener("visibilitychange", () => this.#saveAll()); // on a phone nothing else may follow
    this.#changed();
  }

  // Shows the conversation, and saves it within `later` ms.
  put(conversation, later = 0) {
    const { id } = conversation;
    this.#deleted.delete(id); // it comes back from a file
    this.conversations.set(id, conversation);
    if (later === 0) this.#save(id);
    else if (!this.#unsaved.has(id)) this.#unsaved.set(id, setTimeout(() => this.#save(id), later));
    this.#changed();
  }

  remove(id) {
    this.#deleted.add(id);
    this.#forget(id);
    this.#store.remove(id);
  }

  async #save(id) {
    clearTimeout(this.#unsaved.get(id));
    this.#unsaved.delete(id);
    const put = await this.#store.merge(id, (stored) => this.#seen(id, stored));
    if (!put) return;
    if (this.conversations.has(id)) this.#kept.set(id, put);
    if (this.notice === texts.chat.notKept) this.#tell("");
  }

  #saveAll() {
    for (const id of this.#unsaved.keys()) this.#save(id);
  }

  // What `stored` and the conversation here are together, which is shown from now on; undefined where it is no more.
  #seen(id, stored) {
    const here = this.conversations.get(id);
    const kept = this.#kept.get(id);
    if (this.#deleted.has(id)) return undefined;
    if (!stored && (!here || kept)) {
      this.#forget(id);
      if (here) this.#removed(here);
      return undefined;
    }
    if (here && stored) this.conversations.set(id, merge(kept, here, stored));
    else if (stored) this.conversations.set(id, stored);
    if (stored) this.#kept.set(id, stored);
    this.#changed();
    return this.conversations.get(id);
  }

  #forget(id) {
    clearTimeout(this.#unsaved.get(id));
    this.#unsaved.delete(id);
    this.#kept.delete(id);
    this.conversations.delete(id);
    this.#changed();
  }

  #tell(notice) {
    this.notice = notice;
    this.#changed();
  }
}
