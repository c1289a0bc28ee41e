// Stores small values (settings, keys) in localStorage or sessionStorage. Where it keeps none, they live as long as the
// page does.

class Shelf {
  // Whether the browser refused to keep a value or to show one.
  refused = false;
  #open;
  #here = new Map();

  constructor(open) {
    this.#open = open;
  }

  // The value of that name; empty where there is none.
  get(name) {
    return this.#here.get(name) ?? this.#try((storage) => storage.getItem(name)) ?? "";
  }

  set(name, value) {
    this.#here.delete(name);
    this.#try((storage) => storage.setItem(name, value));
    if (this.refused) this.#here.set(name, value);
  }

  // A browser that is told to keep nothing throws as soon as the storage is named.
  #try(act) {
    try {
      return act(this.#open());
    } catch {
      this.refused = true;
      return null;
    }
  }
}

export const ofTab = new Shelf(() => sessionStorage);
export const ofBrowser = new Shelf(() => localStorage);
