// Which model the server has. While the server cannot be reached, it is asked again and again.

import { json } from "./api.js";
import { texts } from "./texts.js";

const AGAIN_MS = 3000;
const LATE_MS = 15_000;

export class Served {
  // As the server describes it; null before it is known.
  model = null;
  // Why the server does not say, for the user to read; empty where it does.
  problem = "";
  #changed;
  #asking = null;
  #timer = 0;

  // `changed` is called whenever one of the two is another.
  constructor(changed) {
    this.#changed = changed;
  }

  // Asks once for all who want to know at a time.
  find() {
    this.#asking ??= this.#ask().finally(() => (this.#asking = null));
    return this.#asking;
  }

  // The model's name; the one that was learnt before will do. Throws Error where there is none.
  async name() {
    if (!this.model) await this.find();
    if (!this.model) throw new Error(this.problem);
    return this.model.id;
  }

  async #ask() {
    clearTimeout(this.#timer);
    try {
      [this.model] = (await json("v1/models", { lateMs: LATE_MS })).data;
      this.problem = "";
    } catch (error) {
      const unreached = error.status === 0;
      this.problem = unreached ? texts.errors.unreachableNow : error.message;
      if (unreached) this.#timer = setTimeout(() => this.find(), AGAIN_MS);
    }
    this.#changed();
  }
}
