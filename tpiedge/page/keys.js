// Keeps API keys and the admin key, and has the dialog that asks for one. A typed key lives as long as the tab, a key
// that came by a link until the master's next start.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { Dialog } from "./dialog.js";
import { ofBrowser, ofTab } from "./kept.js";
import { texts } from "./texts.js";

const STORED = "tpiedge.key.";
// Of the key that the server took last.
const TAKEN = "tpiedge.taken.";

let show = null;
const waiting = new Map();
// What a header can have: quotes of a word processor cannot be in a key.
const SENDABLE = /^[\x21-\x7e]+$/;

// The key of that kind ("api" or "admin"); empty where there is none.
export function key(kind) {
  return ofTab.get(STORED + kind) || ofBrowser.get(STORED + kind);
}

// Keeps a key that came by a link, for all tabs.
export function keepKey(kind, given) {
  ofTab.set(STORED + kind, "");
  ofBrowser.set(STORED + kind, given);
  tellWaiting(kind, true);
  show?.();
}

// Takes the API key that `tpiedge keys add` puts behind #key= of the address, and removes it from the address. Returns
// whether there was one.
export function takeKey() {
  const [, found] = /^#key=([\x21-\x7e]+)$/.exec(location.hash) ?? [];
  if (!found) return false;
  if (waiting.has("api")) answer("api", found);
  else ofTab.set(`${STORED}api`, found);
  show?.();
  history.replaceState(history.state, "", location.pathname + location.search);
  return true;
}

// That the server takes the key `used`. When it does so no more, it has another one since.
export function keyTaken(kind, used) {
  if (used && ofTab.get(TAKEN + kind) !== used) ofTab.set(TAKEN + kind, used);
}

// Has the user type a key in place of `refused`, once for all who ask at a time. Resolves to whether there is another.
export function askForKey(kind, refused) {
  if (key(kind) !== refused) return Promise.resolve(true);
  if (refused && ofBrowser.get(STORED + kind) === refused) {
    ofBrowser.set(STORED + kind, ""); // the master was restarted: another link helps
    return Promise.resolve(false);
  }
  if (!waiting.has(kind)) {
    let settle;
    const promise = new Promise((resolve) => (settle = resolve));
    const renewed = refused !== "" && ofTab.get(TAKEN + kind) === refused;
    const wrong = renewed ? texts.keys[`${kind}Renewed`] : refused && texts.keys.refused;
    waiting.set(kind, { promise, settle, wrong });
    show?.();
  }
  return waiting.get(kind).promise;
}

function answer(kind, typed) {
  if (typed) ofTab.set(STORED + kind, typed);
  tellWaiting(kind, Boolean(typed));
}

// Tells those who wait for such a key, if any, whether there is one.
function tellWaiting(kind, found) {
  waiting.get(kind)?.settle(found);
  waiting.delete(kind);
}

// Asks for a key of `kind`, which is that of the view; a request for another one waits until its view is shown.
export function KeyDialog({ kind }) {
  const [, refresh] = useState(0);
  const field = useRef(null);
  useLayoutEffect(() => {
    show = () => refresh((count) => count + 1);
    return () => (show = null);
  }, []);
  if (!waiting.has(kind)) return null;
  const finish = (typed) => {
    answer(kind, typed);
    show();
  };
  const submit = (event) => {
    event.preventDefault();
    const typed = field.current.value.trim();
    if (SENDABLE.test(typed)) return finish(typed);
    if (!typed) return;
    waiting.get(kind).wrong = texts.keys.refused;
    show();
  };
  return html`
    <${Dialog} key=${kind} class="key-dialog" name="key-title" why="key-why" cancel=${() => finish("")}>
      <form onSubmit=${submit}>
        <h2 id="key-title">${texts.keys[kind]}</h2>
        <p id="key-why">${texts.keys[`${kind}Why`]}</p>
        ${waiting.get(kind).wrong && html`<p class="error" role="alert">${waiting.get(kind).wrong}</p>`}
        <label for="key-field" class="visually-hidden">${texts.keys[kind]}</label>
        <input id="key-field" ref=${field} type="password" autocomplete="off" spellcheck=${false} />
        <div class="actions">
          <button type="button" onClick=${() => finish("")}>${texts.keys.cancel}</button>
          <button type="submit" class="primary">${texts.keys.use}</button>
        </div>
      </form>
    <//>`;
}
