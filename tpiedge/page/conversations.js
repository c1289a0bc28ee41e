// The list of conversations: search, rename, delete, export; a drawer on narrow screens.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { chats } from "./chats.js";
import { Dialog } from "./dialog.js";
import { Icon } from "./icons.js";
import { texts } from "./texts.js";

// From so many on, one is looked for rather than seen.
const MANY = 8;
// In place of the id of one that is to be deleted.
const ALL = "all";
// A browser begins to write a file a moment after it is told to.
const REVOKE_MS = 60_000;

// `choose` gets the id of a conversation, or "" for a new one.
export function ConversationList({ chosen, open, choose, close }) {
  const [renaming, rename] = useState("");
  const [removing, remove] = useState("");
  const [said, say] = useState(null); // here, so that the list is drawn with it
  const first = useRef(null);
  useLayoutEffect(() => {
    if (open) first.current.focus();
  }, [open]);
  const all = chats.list();
  const { busy } = chats;
  const [wanted, find] = useState("");
  const list = all.length < MANY ? all : all.filter((one) => has(one, wanted.trim().toLowerCase()));
  const removed = () => {
    if (removing === ALL) chats.removeAll();
    else chats.remove(removing);
    remove("");
    if (removing === chosen || removing === ALL) choose("");
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
      <${Tools} said=${said} say=${say} count=${all.length} removeAll=${() => remove(ALL)} />
    </nav>
    ${chats.conversations.has(removing) && html`<${Removal} ask=${texts.chat.removeAsk}
      why=${texts.chat.removeWhy(chats.conversations.get(removing).title)} remove=${removed}
      cancel=${() => remove("")} />`}
    ${removing === ALL && html`<${Removal} ask=${texts.chat.removeAllAsk(all.length)} why=${texts.chat.removeAllWhy}
      remove=${removed} cancel=${() => remove("")} />`}`;
}

// What is done with all of them.
function Tools({ said, say, count, removeAll }) {
  const file = useRef(null);
  const take = async ({ target }) => {
    const [chosen] = target.files;
    target.value = ""; // the same file may be chosen again
    try {
      say({ text: texts.chat.imported(chats.import(await chosen.text())) });
    } catch (error) {
      say({ text: error.message, failed: true });
    }
  };
  return html`<div class="conversations-tools">
    ${said && html`<p class=${said.failed ? "error" : "muted"} role=${said.failed ? "alert" : "status"}>
      ${said.text}</p>`}
    <input type="file" ref=${file} hidden accept=".json,application/json" aria-label=${texts.chat.importFile}
      onChange=${take} />
    <button type="button" onClick=${() => file.current.click()}>${texts.chat.importDo}</button>
    ${count > 0 && html`
      <button type="button" onClick=${save}>${texts.chat.exportDo}</button>
      <button type="button" onClick=${() => { say(null); removeAll(); }}>${texts.chat.removeAllDo}</button>`}
  </div>`;
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([chats.exported()], { type: "application/json" }));
  link.download = texts.chat.exportName(new Date());
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_MS);
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

function Removal({ ask, why, remove, cancel }) {
  return html`<${Dialog} name="remove-title" why="remove-why" cancel=${cancel}>
    <h2 id="remove-title">${ask}</h2>
    <p id="remove-why">${why}</p>
    <div class="actions">
      <button type="button" onClick=${cancel}>${texts.chat.cancel}</button>
      <button type="button" class="danger" onClick=${remove}>${texts.chat.removeDo}</button>
    </div>
  <//>`;
}
