// Polls the cluster's state every second while the page is visible, and sends an administrator's orders.

import { json, read, refusal, Refusal, request } from "./api.js";
import { keepKey, key } from "./keys.js";
import { texts } from "./texts.js";

const LOOK_MS = 1000;
// A machine that lost its power does not say so.
const LATE_MS = 15_000;
const PATH = "admin/cluster";
const NOTHING_NEW = 304;
const NO_ANSWER = 0;
const NO_KEY = 401;
// Of the last minute.
const RATES = 60;

class ClusterWatch extends EventTarget {
  // The latest picture; null before the first one.
  picture = null;
  // Why the picture is an old one, or missing; empty where it is not.
  problem = "";
  // Whether that is because nobody answers.
  unreachable = false;
  // Whether a key has to be typed before anything can be seen.
  locked = false;
  // Why a link did not help; empty where it did.
  noEntry = "";
  // Tokens per second at the last looks.
  rates = [];
  #tag = "";
  #seenAt_s = 0;
  #watchers = 0;
  // Whether a look is under way. A second one would ask for the key again after the user refused.
  #looking = false;
  #stop = new AbortController();

  // Looks until the returned function is called.
  watch() {
    this.#watchers += 1;
    if (this.#watchers === 1) {
      this.#stop = new AbortController();
      this.#set(() => (this.locked = key("admin") === ""));
      this.#look(this.#stop.signal);
    }
    return () => {
      this.#watchers -= 1;
      if (this.#watchers === 0) this.#stop.abort();
    };
  }

  // Looks now, and has the user type the key where that is needed.
  async unlock() {
    this.#set(() => (this.locked = false));
    await this.#once(this.#stop.signal);
  }

  // Trades the code of a link for the admin key.
  async enter(code) {
    try {
      const options = { method: "POST", kind: "", headers: { Authorization: `Bearer ${code}` } };
      const { key: found } = await json("admin/key", options);
      keepKey("admin", found);
      this.#set(() => (this.locked = false));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const used = error.status === NO_KEY;
      this.#set(() => (this.noEntry = used ? texts.cluster.linkUsed : error.message));
    }
  }

  // Has the server do it, or asks it something, and looks at once. Throws Refusal.
  async order(path, options) {
    const answer = await json(`admin/${path}`, { method: "POST", kind: "admin", ...options });
    await this.#once(this.#stop.signal);
    return answer;
  }

  async #look(signal) {
    while (!signal.aborted) {
      if (!this.locked && !this.#looking && !document.hidden) await this.#once(signal);
      await pause(LOOK_MS, signal);
    }
  }

  async #once(signal) {
    this.#looking = true;
    try {
      const headers = this.#tag ? { "If-None-Match": this.#tag } : {};
      const asking = () => this.#set(() => this.#missed(texts.cluster.keyWanted, false));
      const answer = await request(PATH, { headers, signal, kind: "admin", lateMs: LATE_MS, asking });
      if (!answer.ok && answer.status !== NOTHING_NEW) throw await refusal(answer);
      const picture = answer.ok ? await read(answer) : this.picture;
      this.#tag = answer.headers.get("etag") ?? "";
      this.#set(() => this.#take(picture));
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refusal)) throw error;
      this.#set(() => this.#refused(error));
    } finally {
      this.#looking = false;
    }
  }

  #take(picture) {
    this.picture = picture;
    this.problem = this.noEntry = "";
    this.#seenAt_s = Date.now() / 1000;
    this.rates = [...this.rates, picture.totals.tokens_per_s ?? 0].slice(-RATES);
  }

  #refused(error) {
    this.locked = error.status === NO_KEY;
    if (this.locked) this.problem = "";
    else this.#missed(error.message, error.status === NO_ANSWER);
  }

  #missed(why, unreachable) {
    this.problem = this.picture ? texts.cluster.unseen(this.#seenAt_s, why) : why;
    this.unreachable = unreachable;
  }

  #set(change) {
    change();
    this.dispatchEvent(new Event("change"));
  }
}

export const cluster = new ClusterWatch();

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}
