// The view of chats: the list of conversations, the messages of one, and the input.

import { html, useEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { useChanges } from "./changes.js";
import { chats } from "./chats.js";
import { Composer, focusMessage } from "./composer.js";
import { ConversationList } from "./conversations.js";
import { Icon } from "./icons.js";
import { Message } from "./message.js";
import { isCalled } from "./served.js";
import { Settings } from "./settings.js";
import { texts } from "./texts.js";
import { path } from "./tree.js";

const VIEW = "#chat";
const NEAR_END = 80;
const ANNOUNCED = 600;

// The conversation that the address names; empty for a new one.
function named() {
  return location.hash.startsWith(`${VIEW}/`) ? location.hash.slice(VIEW.length + 1) : "";
}

function go(id) {
  location.hash = id ? `${VIEW}/${id}` : VIEW;
}

export function Chat() {
  useChanges(chats);
  const [id, follow] = useState(named);
  const [listed, list] = useState(false);
  const [adjusting, adjust] = useState(false);
  const [begun, begin] = useState(null); // the settings of the new chat, where they are not the usual ones
  const opener = useRef(null);
  useEffect(() => {
    const moved = () => follow(named());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const conversation = chats.conversations.get(id);
  const usual = chats.usualSettings();
  const settings = conversation?.settings ?? begun ?? usual;
  const own = !same(settings, usual);
  const model = chats.modelOf(settings);
  const live = chats.running.get(chats.answering(id));
  const waits = live?.note || live?.tokens; // which says more than that the model is not ready
  const gone = conversation && model && settings.model && !isCalled(model, settings.model);
  const chosen = (next) => {
    go(next);
    list(false);
    focusMessage();
  };
  const closeList = () => {
    list(false);
    opener.current.focus();
  };
  const send = (text) => {
    const chosen = chats.models.length === 1 ? undefined : (model?.id ?? settings.model);
    go(chats.send(conversation?.id, text, { ...settings, model: chosen }));
    if (!conversation) begin(null);
  };
  const adjusted = (values, ofNew) => {
    if (conversation) chats.set(conversation.id, values);
    else begin(ofNew || same(values, usual) ? null : values);
    if (ofNew) chats.setUsual({ ...values, model: usual.model });
    adjust(false);
  };
  const pick = ({ target }) => {
    adjusted({ ...settings, model: target.value });
    chats.setUsual({ ...usual, model: target.value });
  };
  const ask = () => {
    chats.findModel();
    focusMessage(); // the button goes
  };
  return html`<div class="chat">
    <${ConversationList} chosen=${conversation?.id} open=${listed} choose=${chosen} close=${closeList} />
    <section class="talk" aria-label=${texts.chat.conversation}>
      <div class="talk-head">
        <button type="button" class="quiet only-narrow" ref=${opener} aria-label=${texts.chat.open}
          aria-expanded=${listed} onClick=${() => list(true)}><${Icon} name="list" /></button>
        <h1>${conversation?.title || texts.chat.add}</h1>
        ${chats.models.length > 1
          ? html`<select class="model" aria-label=${texts.chat.model} title=${model.id} value=${model.id}
              onChange=${pick}>${chats.models.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
            </select>`
          : model && html`<span class="model" title=${model.id}>${model.id}</span>`}
        <button type="button" class="quiet" title=${own ? texts.chat.settingsOwn : null} onClick=${() => adjust(true)}>
          <${Icon} name="settings" /><span>${texts.chat.settings}</span>
          ${own && html`<i class="own-sign" aria-hidden="true"></i>`}
        </button>
      </div>
      ${chats.problem && html`<p class="problem" role="alert">${chats.problem}
        <button type="button" onClick=${ask}>${chats.keyless ? texts.chat.typeKey : texts.chat.again}</button></p>`}
      ${chats.unready && !waits && html`<p class="notice" role="status">${chats.unready}</p>`}
      ${gone && html`<p class="notice" role="status">${texts.chat.notOffered(settings.model, model.id)}</p>`}
      ${chats.notice && html`<p class="notice" role="status">${chats.notice}</p>`}
      <${Messages} key=${conversation?.id ?? "new"} conversation=${conversation} model=${model} />
      <${Composer} key=${`say-${conversation?.id}`} conversation=${conversation?.id ?? ""}
        answering=${chats.answering(id)} send=${send} />
    </section>
    ${adjusting && html`<${Settings} values=${settings} own=${own} save=${adjusted} cancel=${() => adjust(false)} />`}
  </div>`;
}

// Whether the dialog shows the same of both.
function same(settings, others) {
  const names = Object.keys({ ...settings, ...others });
  return names.every((name) => name === "model" || settings[name] === others[name]);
}

function Messages({ conversation, model }) {
  const scroller = useRef(null);
  const [atEnd, setAtEnd] = useState(true);
  const [editing, edit] = useState(""); // the id of the message that is edited
  const [, resized] = useState(0);
  const nodes = conversation ? path(conversation) : [];
  const last = nodes.at(-1);
  const asked = useRef(last?.id);
  const place = useRef({ top: 0, atEnd: true }); // as last seen; an effect may be older than what it is drawn from
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    place.current = { top: scrollTop, atEnd: scrollHeight - scrollTop - clientHeight < NEAR_END };
    setAtEnd(place.current.atEnd);
  };
  useEffect(() => {
    const isNew = last && last.id !== asked.current && chats.running.has(last.id);
    if (isNew) asked.current = last.id; // whoever asks wants to see it, wherever they read
    const left = scroller.current.scrollTop < place.current.top; // just now: the event comes with the next frame
    if ((place.current.atEnd && !left) || isNew) scroller.current.scrollTop = scroller.current.scrollHeight;
    scrolled();
  });
  useEffect(() => {
    const observer = new ResizeObserver(() => resized((count) => count + 1));
    observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);
  const toEnd = () => {
    scroller.current.scrollTop = scroller.current.scrollHeight;
    scroller.current.focus();
  };
  return html`<div class="messages-frame">
    <div class="messages" ref=${scroller} onScroll=${scrolled} tabindex="0" role="group"
      aria-label=${texts.chat.conversation}>
      ${nodes.length === 0 && html`<div class="welcome">
        <h2>${texts.chat.welcome}</h2><p class="muted">${texts.chat.welcomeWhy(model?.id)}</p>
      </div>`}
      ${nodes.map((node) => html`<${Message} key=${node.parent} conversation=${conversation} node=${node} model=${model}
        last=${node === last} live=${chats.running.get(node.id)} editing=${editing === node.id} edit=${edit} />`)}
    </div>
    ${!atEnd && html`<button type="button" class="to-end" onClick=${toEnd}><${Icon} name="down" />
      <span>${texts.chat.toEnd}</span></button>`}
    <${Announcer} node=${last?.role === "assistant" ? last : undefined} />
  </div>`;
}

// Tells a screen reader why an answer pauses and, once, what it is: not every token of it.
function Announcer({ node }) {
  const [said, say] = useState("");
  const live = node && chats.running.get(node.id);
  const before = useRef({ id: node?.id, live });
  useEffect(() => {
    const same = before.current.id === node?.id;
    if (live) say(live.note ? texts.chat.pauses(live) : "");
    else if (same && before.current.live) say(outcome(node));
    else if (!same) say("");
    before.current = { id: node?.id, live };
  });
  return html`<div class="visually-hidden" role="status">${said}</div>`;
}

function outcome(node) {
  if (node.state === "failed") return texts.chat.failed(node.error);
  if (node.state === "unread") return texts.chat.unread(node.error);
  const { text } = node;
  return texts.chat.answered(text.length > ANNOUNCED ? `${text.slice(0, ANNOUNCED)} …` : text);
}
