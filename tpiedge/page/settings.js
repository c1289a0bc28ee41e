// The dialog of sampling settings and the system prompt.

import { html, useRef, useState } from "./vendor/htm/standalone.module.js";
import { Dialog } from "./dialog.js";
import { texts } from "./texts.js";

const NUMBERS = [
  { name: "temperature", min: 0, max: 2, step: "any" },
  { name: "top_p", min: 0.001, max: 1, step: "any" },
  { name: "max_tokens", min: 1, max: 2 ** 32 - 1, step: 1 },
  { name: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

// `own`: whether they are others than a new chat begins with. `save` gets the values, without those that are empty, and
// whether new chats are to begin with them, too.
export function Settings({ values, own, save, cancel }) {
  const [usual, makeUsual] = useState(false);
  const draft = useRef(values);
  const change = (name, value) => {
    const { [name]: _before, ...others } = draft.current;
    draft.current = value === "" ? others : { ...others, [name]: value };
  };
  const number = ({ target }, name) => {
    if (target.checkValidity()) change(name, target.value === "" ? "" : target.valueAsNumber);
  };
  return html`<${Dialog} class="settings" name="settings-title" why="settings-why" cancel=${cancel}>
    <form onSubmit=${(event) => { event.preventDefault(); save(draft.current, usual); }}>
      <h2 id="settings-title">${texts.chat.settings}</h2>
      <p id="settings-why" class="muted">${texts.chat.settingsWhy}${own && ` ${texts.chat.settingsOwn}`}</p>
      <label for="set-system">${texts.chat.system}</label>
      <textarea id="set-system" rows="3" defaultValue=${values.system ?? ""}
        onChange=${(event) => change("system", event.target.value)}></textarea>
      <div class="numbers">
        ${NUMBERS.map(({ name, ...range }) => html`<div key=${name}>
          <label for="set-${name}">${texts.chat[name]}</label>
          <input id="set-${name}" type="number" inputmode="decimal" ...${range} defaultValue=${values[name] ?? ""}
            placeholder=${texts.chat.unset[name]}
            aria-describedby="why-${name}" onChange=${(event) => number(event, name)} />
          <p id="why-${name}" class="muted">${texts.chat[`${name}Why`]}</p>
        </div>`)}
      </div>
      <label class="check"><input type="checkbox" checked=${usual}
        onChange=${(event) => makeUsual(event.target.checked)} /> ${texts.chat.makeUsual}</label>
      <div class="actions">
        <button type="button" onClick=${cancel}>${texts.chat.cancel}</button>
        <button type="submit" class="primary">${texts.chat.done}</button>
      </div>
    </form>
  <//>`;
}
