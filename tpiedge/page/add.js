// The dialog that adds a machine: shows the lines to paste there, with a new token each time.

import { html, useState } from "./vendor/htm/standalone.module.js";
import { copy } from "./copy.js";
import { Dialog } from "./dialog.js";
import { texts } from "./texts.js";
import { cluster } from "./watch.js";

const words = texts.cluster.add;

export function AddMachine() {
  const [shown, show] = useState(null);
  const [failed, fail] = useState("");
  const [copied, say] = useState("");
  const make = async () => {
    fail("");
    say("");
    try {
      const { lines, ports } = await cluster.order("tokens", { body: {} });
      show({ lines: lines.join("\n"), notes: words.notes(ports.at(0), ports.at(-1)) });
    } catch (error) {
      fail(error.message);
    }
  };
  return html`<div class="one-more">
    <button type="button" onClick=${make}>${words.title}</button>
    ${failed && html`<p class="problem" role="alert">${failed}</p>`}
    ${shown && html`<${Dialog} name="add-title" why="add-why" cancel=${() => show(null)}>
      <h2 id="add-title">${words.title}</h2>
      <p id="add-why">${words.why}</p>
      <pre tabindex="0">${shown.lines}</pre>
      <ul>${shown.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul>
      <div class="actions">
        <button type="button" onClick=${() => show(null)}>${words.close}</button>
        <button type="button" class="primary"
          onClick=${async () => say((await copy(shown.lines)) ? words.copied : words.notCopied)}>
          ${copied || words.copy}</button>
      </div>
    <//>`}
  </div>`;
}
