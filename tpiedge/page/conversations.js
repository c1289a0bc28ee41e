// The list of conversations; on a narrow screen a drawer over the one that is shown.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { chats } from "./chats.js";
import { Dialog } from "./dialog.js";
import { Icon } from "./icons.js";
import { texts } from "./texts.js";

// From so many on, one is looked for rather than seen.
const MANY = 8;

// `choose` gets the id of a conversation, or "" for a new one.
export function ConversationList({ chosen, open, choose, close }) {
  const [renaming, rename] = useState("");
  const [removing, remove] = useState("");
  const first = useRef(null);
  useLayoutEffect(() => {
    if (open) first.current.focus();
  }, [open]);
  const all = chats.list();
  const { busy } = chats;
  const [wanted, find] = useState("");
  const list = all.length < MANY ? all : all.filter((one) => has(one, wanted.trim().toLowerCase()));
  const removed = () => {
    chats.remove(removing);
    remove("");
    if (removing === chosen) choose("");
    else requestAnimationFrame(() => first.current?.focus()); // its button is gone
  };
  const renamed = (byKey) => {
    rename("");
    if (byKey) requestAnimationFrame(() => document.getElementById(`entry-${renaming}`)?.focus());
  };
  const pressed = (event) => {
    if (event.key === "Escape" && open && !removing) close();
  };
  return html`
    ${open && html`<div class="shade" onClick=${close}></div>`}
    <nav class=${open ? "conversations open" : "conversations"} aria-label=${texts.chat.conversations}
      onKeyDown=${pressed}>
      <div class="conversations-head">
        <button type="button" class="new" ref=${first} onClick=${() => choose("")}>
          <${Icon} name="add" /><span>${texts.chat.add}</span>
        </button>
        <button type="button" class="quiet only-narrow" aria-label=${texts.chat.close} onClick=${close}>
          <${Icon} name="close" />
        </button>
      </div>
      ${all.length >= MANY && html`<input type="search" class="find" aria-label=${texts.chat.find}
        placeholder=${texts.chat.find} value=${wanted} onInput=${(event) => find(event.target.value)} />`}
      ${chats.loaded && list.length === 0 && html`<p class="muted none">
        ${all.length === 0 ? texts.chat.none : texts.chat.notFound}</p>`}
      <ul>
        ${list.map((one) => html`<li key=${one.id} class=${one.id === chosen ? "chosen" : ""}>
          ${renaming === one.id
            ? html`<${Renamer} one=${one} close=${renamed} />`
            : html`<${Entry} one=${one} chosen=${one.id === chosen} busy=${busy.has(one.id)} choose=${choose}
                rename=${rename} remove=${remove} />`}
        </li>`)}
      </ul>
    </nav>
    ${chats.conversations.has(removing) && html`<${Removal} title=${chats.conversations.get(removing).title}
      remove=${removed} cancel=${() => remove("")} />`}`;
}

// Whether its title or something that was said in it has the words.
function has({ title, nodes }, words) {
  return [title, ...Object.values(nodes).map((node) => node.text)].some((text) => text.toLowerCase().includes(words));
}

function Entry({ one, chosen, busy, choose, rename, remove }) {
  return html`
    ${busy && !chosen && html`<span class="pulse running-sign" role="img" aria-label=${texts.chat.isAnswering}
      title=${texts.chat.isAnswering}></span>`}
    <a id="entry-${one.id}" href="#chat/${one.id}" aria-current=${chosen ? "true" : null}
      onClick=${(event) => { event.preventDefault(); choose(one.id); }}>${one.title}</a>
    <span class="entry-tools">
      <button type="button" class="quiet" aria-label=${texts.chat.rename(one.title)}
        title=${texts.chat.rename(one.title)} onClick=${() => rename(one.id)}><${Icon} name="edit" /></button>
      <button type="button" class="quiet" aria-label=${texts.chat.remove(one.title)}
        title=${texts.chat.remove(one.title)} onClick=${() => remove(one.id)}><${Icon} name="remove" /></button>
    </span>`;
}

function Renamer({ one, close }) {
  const field = useRef(null);
  const closed = useRef(false);
  useLayoutEffect(() => field.current.select(), []);
  const finish = (title, byKey) => {
    if (closed.current) return; // what has the focus loses it when it goes
    closed.current = true;
    if (title && title !== one.title) chats.rename(one.id, title);
    close(byKey);
  };
  const submit = (event) => {
    event.preventDefault();
    finish(field.current.value.trim(), true);
  };
  const pressed = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    finish("", true);
  };
  return html`<form class="renamer" onSubmit=${submit}>
    <input ref=${field} defaultValue=${one.title} aria-label=${texts.chat.newName} maxlength="200" onKeyDown=${pressed}
      onBlur=${(event) => finish(event.target.value.trim(), false)} />
  </form>`;
}

function Removal({ title, remove, cancel }) {
  return html`<${Dialog} name="remove-title" why="remove-why" cancel=${cancel}>
    <h2 id="remove-title">${texts.chat.removeAsk}</h2>
    <p id="remove-why">${texts.chat.removeWhy(title)}</p>
    <div class="actions">
      <button type="button" onClick=${cancel}>${texts.chat.cancel}</button>
      <button type="button" class="danger" onClick=${remove}>${texts.chat.removeDo}</button>
    </div>
  <//>`;
}
