// Stores conversations in the browser's database (IndexedDB), which no server sees. Every tab of this
// page has it open, and tells the others what it changed.

const NAME = "tpiedge";
const TABLE = "conversations";

export class ConversationStore {
  #database = null;
  #failed;
  #others = new BroadcastChannel(NAME);

  // `failed` is called with whether the browser keeps anything when something could not be done; `changedElsewhere`
  // with the id of a conversation that another tab changed.
  constructor(failed, changedElsewhere) {
    this.#failed = failed;
    this.#others.onmessage = (event) => changedElsewhere(event.data);
  }

  // Every conversation; none where the browser keeps nothing.
  async all() {
    return (await this.#run("readonly", (table, give) => (table.getAll().onsuccess = give))) ?? [];
  }

  // Calls `take` with the conversation of that id, or undefined.
  async look(id, take) {
    await this.#run("readonly", (table) => (table.get(id).onsuccess = ({ target }) => take(target.result)));
  }

  // Puts what `combine` makes of the conversation of that id (undefined where there is none); nothing where that is
  // undefined. No other tab changes it in between. Returns what was put, once it is kept.
  async merge(id, combine) {
    let put;
    const kept = await this.#run("readwrite", (table, give) => {
      table.get(id).onsuccess = ({ target }) => {
        put = combine(target.result);
        if (put) table.put(put).onsuccess = give;
      };
    });
    if (kept === undefined) return undefined;
    this.#others.postMessage(id);
    return put;
  }

  async remove(id) {
    await this.#run("readwrite", (table) => table.delete(id));
    this.#others.postMessage(id);
  }

  async #open() {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    return await new Promise((resolve, reject) => {
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = () => reject(opening.error);
    });
  }

  // What `act` gives: the result of a request, once the whole is kept; undefined where it is not.
  async #run(mode, act) {
    let database = null;
    try {
      database = await (this.#database ??= this.#open());
      const transaction = database.transaction(TABLE, mode);
      let result;
      act(transaction.objectStore(TABLE), ({ target }) => (result = target.result));
      await new Promise((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
      });
      return result;
    } catch {
      this.#failed(database !== null);
      return undefined;
    }
  }
}
