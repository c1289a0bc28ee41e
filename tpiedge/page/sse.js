// Parses an event stream (text/event-stream) as it arrives. Pure.

// Cuts the text of a stream into `{comment}` and `{id, data}`, in their order; `id` is empty where none was sent.
export class EventParser {
  #rest = "";
  #afterReturn = false;
  #id = "";
  #data = [];

  // What the next piece of the text completes.
  feed(text) {
    const found = [];
    let rest = this.#rest + (this.#afterReturn && text.startsWith("\n") ? text.slice(1) : text);
    this.#afterReturn = text === "" ? this.#afterReturn : text.endsWith("\r");
    for (;;) {
      const end = rest.search(/[\r\n]/);
      if (end < 0) break;
      this.#line(rest.slice(0, end), found);
      rest = rest.slice(end + (rest.startsWith("\r\n", end) ? 2 : 1));
    }
    this.#rest = rest;
    return found;
  }

  #line(line, found) {
    if (line === "") return this.#dispatch(found);
    if (line.startsWith(":")) {
      found.push({ comment: line.slice(1).trim() });
      return;
    }
    const [, name, value] = /^([^:]*)(?:: ?)?(.*)$/s.exec(line);
    if (name === "data") this.#data.push(value);
    if (name === "id") this.#id = value;
  }

  #dispatch(found) {
    if (this.#data.length > 0) found.push({ id: this.#id, data: this.#data.join("\n") });
    this.#data = [];
    this.#id = "";
  }
}
