// Where conversations stay when the page is closed: the browser's own database, which no server sees.

const NAME = "tpiedge";
const TABLE = "conversations";

// Opens the database. `failed` is called with an Error when something could not be kept.
export class ConversationStore {
  #database;
  #failed;
  #others = new BroadcastChannel(NAME);

  constructor(failed, changedElsewhere) {
    this.#failed = failed;
    this.#database = this.#open();
    this.#others.onmessage = (event) => changedElsewhere(event.data);
  }

  // Every conversation; none where the browser keeps nothing.
  async all() {
    return (await this.#run("readonly", (table) => table.getAll())) ?? [];
  }

  // The conversation of that id, if there is one.
  async get(id) {
    return await this.#run("readonly", (table) => table.get(id));
  }

  async put(conversation) {
    await this.#run("readwrite", (table) => table.put(conversation));
    this.#others.postMessage(conversation.id);
  }

  async remove(id) {
    await this.#run("readwrite", (table) => table.delete(id));
    this.#others.postMessage(id);
  }

  async #open() {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    return await settled(opening);
  }

  async #run(mode, act) {
    try {
      const transaction = (await this.#database).transaction(TABLE, mode);
      const result = await settled(act(transaction.objectStore(TABLE)));
      await new Promise((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
      });
      return result;
    } catch (error) {
      this.#failed(error);
      return undefined;
    }
  }
}

function settled(asked) {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}
