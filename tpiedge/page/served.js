// Asks which models the server has, and whether it is ready. While it cannot be reached or is not ready, it is asked
// again and again.

import { json, read, request } from "./api.js";
import { texts } from "./texts.js";

const AGAIN_MS = 3000;
const LATE_MS = 15_000;
const NO_ANSWER = 0;
const NO_KEY = 401;

export class Served {
  // As the server describes them, each once, the served one first; empty before they are known.
  models = [];
  // Why the server does not say, for the user to read; empty where it does.
  problem = "";
  // Whether that is because it wants a key.
  keyless = false;
  // Why it would not answer now, or at once, for the user to read; empty where it would.
  unready = "";
  // Whether it said at last that it would answer.
  ready = false;
  #changed;
  #asking = null;
  #timer = 0;

  // `changed` is called whenever one of them is another.
  constructor(changed) {
    this.#changed = changed;
  }

  // Asks once for all who want to know at a time.
  find() {
    this.#asking ??= this.#ask().finally(() => (this.#asking = null));
    return this.#asking;
  }

  // The model of that name; the one that is served where it is not offered. Null before it is known.
  model(name) {
    return this.models.find((one) => isCalled(one, name)) ?? this.models[0] ?? null;
  }

  // The name of `model(name)`; what was learnt before will do. Throws Error where there is none.
  async name(name) {
    if (!this.model(name)) await this.find();
    if (!this.model(name)) throw new Error(this.problem);
    return this.model(name).id;
  }

  async #ask() {
    clearTimeout(this.#timer);
    this.ready = false;
    try {
      const { data } = await json("v1/models", { lateMs: LATE_MS, asking: () => this.#tell("") });
      const { models: [loaded] } = await json("api/ps", { lateMs: LATE_MS });
      this.models = data.filter(({ id }, index) => !data.slice(0, index).some((one) => isCalled(one, id)));
      const { ready, reason } = await read(await request("ready", { lateMs: LATE_MS }));
      this.unready = !ready ? texts.chat.unready(reason) : loaded ? "" : texts.chat.asleep;
      this.keyless = false;
      this.ready = ready;
      this.#tell("", !ready);
    } catch (error) {
      const unreached = error.status === NO_ANSWER;
      this.keyless = error.status === NO_KEY;
      this.unready = "";
      this.#tell(unreached ? texts.errors.unreachableNow : error.message, unreached);
    }
  }

  #tell(problem, again = false) {
    this.problem = problem;
    if (again) this.#timer = setTimeout(() => this.find(), AGAIN_MS);
    this.#changed();
  }
}

export function isCalled({ id, also_called }, name) {
  return id === name || also_called.includes(name);
}
