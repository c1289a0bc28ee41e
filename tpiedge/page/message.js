// Shows one message: the user's, which can be edited, or an answer with its reasoning, tokens and speed.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { useTicks } from "./changes.js";
import { chats, passes, rateOf } from "./chats.js";
import { fit, focusMessage, sends } from "./composer.js";
import { copy } from "./copy.js";
import { Icon } from "./icons.js";
import { Markdown } from "./markdown.js";
import { texts } from "./texts.js";

const TICK_MS = 500;
const SHOWN_MS = 1500;
const TOO_LONG = "context_length_exceeded";

// `model` answers next; `live` is what is known of an answer that is being made; `edit` gets the id of the question
// that is to be edited, "" for none, and `editing` says whether it is this one.
export function Message(props) {
  return props.node.role === "user" ? html`<${Question} ...${props} />` : html`<${Answer} ...${props} />`;
}

function Question({ conversation, node, editing, edit }) {
  const opener = useRef(null);
  const closed = () => {
    edit("");
    requestAnimationFrame(() => opener.current?.focus());
  };
  const sent = (text) => {
    if (text === node.text) return closed();
    edit("");
    chats.edit(conversation.id, node.id, text);
    focusMessage();
  };
  return html`<article class="message question" aria-label=${texts.chat.you}>
    <h2 class="visually-hidden">${texts.chat.you}</h2>
    ${editing ? html`<${Editor} text=${node.text} send=${sent} cancel=${closed} />`
      : html`<div class="said">${node.text}</div>
    <div class="tools">
      <${Versions} conversation=${conversation} node=${node} />
      <${Copy} text=${node.text} />
      <button type="button" class="quiet" ref=${opener} onClick=${() => edit(node.id)}>
        <${Icon} name="edit" /><span>${texts.chat.edit}</span>
      </button>
    </div>`}
  </article>`;
}

function Editor({ text, send, cancel }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    fit(field.current);
    field.current.focus();
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    if (field.current.value.trim()) send(field.current.value);
  };
  const pressed = (event) => {
    if (event.key === "Escape") cancel();
    if (sends(event)) submit(event);
  };
  return html`<form class="editor" onSubmit=${submit}>
    <textarea ref=${field} defaultValue=${text} aria-label=${texts.chat.editing} onKeyDown=${pressed}
      onInput=${(event) => fit(event.target)}></textarea>
    <div class="actions">
      <button type="button" onClick=${cancel}>${texts.chat.cancel}</button>
      <button type="submit" class="primary">${texts.chat.send}</button>
    </div>
  </form>`;
}

function Answer({ conversation, node, model, live, last, edit }) {
  const name = node.model ?? model?.id ?? texts.shell.name;
  const goOn = chats.canGoOn(node);
  const tooLong = node.code === TOO_LONG;
  const extend = () => {
    chats.extend(conversation.id, node.id);
    focusMessage(); // the button goes
  };
  const anew = () => {
    if (tooLong) return edit(node.parent); // the same would fail again
    if (goOn) chats.goOn(conversation.id, node.id);
    else chats.regenerate(conversation.id, node.id);
    focusMessage(); // the button goes
  };
  return html`<article class="message answer" aria-label=${name} aria-busy=${Boolean(live)}>
    <h2 class="visually-hidden">${name}</h2>
    ${node.thought && html`<${Reasoning} node=${node} live=${live} />`}
    <${Markdown} text=${node.text} done=${!live} />
    ${live ? html`<${Progress} live=${live} />` : html`<${Outcome} node=${node} model=${model} />`}
    ${!live && html`<div class="tools">
      <${Versions} conversation=${conversation} node=${node} />
      ${node.text && html`<${Copy} text=${node.text} />`}
      ${last && !tooLong && chats.canExtend(node, model) && html`<button type="button" class="quiet" onClick=${extend}>
        <${Icon} name="right" /><span>${texts.chat.goOn}</span></button>`}
      ${(last || goOn) && html`<button type="button" class="quiet" onClick=${anew}>
        <${Icon} name=${tooLong ? "edit" : "again"} /><span>${tooLong ? texts.chat.edit : words(node, goOn)}</span>
      </button>`}
    </div>`}
  </article>`;
}

function words(node, goOn) {
  if (goOn) return texts.chat.goOn;
  return node.state === "failed" ? texts.chat.again : texts.chat.regenerate;
}

function Reasoning({ node, live }) {
  const thinking = live && !node.text;
  return html`<details class="reasoning">
    <summary>${thinking ? texts.chat.thinking : texts.chat.thought}</summary>
    <div class="said">${node.thought}</div>
  </details>`;
}

function Progress({ live }) {
  useTicks(TICK_MS);
  return html`<p class=${live.note ? "progress paused" : "progress"}>
    <span class="pulse" aria-hidden="true"></span>${progress(live)}
  </p>`;
}

function progress(live) {
  const { phase, since, note, tokens, reading } = live;
  if (note) return texts.chat.pauses(live);
  if (phase === "sent") return texts.chat.sent;
  if (phase === "opened" && reading) return texts.chat.reading(reading);
  if (phase === "opened") return texts.chat.opened((performance.now() - since) / 1000);
  return texts.chat.live(tokens, rateOf(live));
}

function Outcome({ node, model }) {
  const { state, error, code, finish, text } = node;
  const facts = factsOf(node, model);
  const over = passes(node) && chats.ready;
  const failed = over ? texts.chat.readyNow : text ? texts.chat.brokeOff : texts.chat.failed;
  return html`
    ${state === "failed" && html`<p class=${over ? "muted" : "error"}>${failed(error)}</p>`}
    ${code === TOO_LONG && html`<p class="muted">${texts.chat.tooLong(model?.context_length)}</p>`}
    ${state === "stopped" && html`<p class="muted">${texts.chat.stopped}</p>`}
    ${state === "unread" && html`<p class="error">${texts.chat.unread(error)}</p>`}
    ${state === "running" && html`<p class="muted">${texts.chat.elsewhere}</p>`}
    ${state === "interrupted" && html`<p class="muted">${texts.chat.interrupted}</p>`}
    ${finish === "length" && html`<p class="muted">${chats.fills(node, model) ? texts.chat.full : texts.chat.cut}</p>`}
    ${facts.length > 0 && html`<p class="facts">${facts.map((fact) => html`<span key=${fact}>${fact}</span>`)}</p>`}`;
}

function factsOf({ model, usage, tokens = 0, before = 0, rate, first_s }, next) {
  const facts = model && next && model !== next.id ? [model] : [];
  const count = before + (usage?.completion_tokens ?? tokens);
  if (count) facts.push(texts.chat.count(count));
  if (rate) facts.push(texts.chat.rate(rate));
  if (usage?.tokens_per_step) facts.push(texts.chat.perStep(usage.tokens_per_step));
  if (first_s !== undefined) facts.push(texts.chat.first(first_s));
  if (usage?.prompt_tokens) {
    facts.push(texts.chat.prompt(usage.prompt_tokens, usage.prompt_tokens_details?.cached_tokens));
  }
  if (usage?.pauses) facts.push(texts.chat.paused(usage.pauses.seconds));
  return facts;
}

// Which of several stands here, where a message was edited or answered anew. At an end the button keeps the focus.
function Versions({ conversation, node }) {
  const ids = chats.versions(conversation.id, node.id);
  if (ids.length < 2) return null;
  const index = ids.indexOf(node.id);
  const step = (by) => ids[index + by] && chats.show(conversation.id, ids[index + by]);
  return html`<span class="versions">
    <button type="button" class="quiet" aria-label=${texts.chat.previous} aria-disabled=${index === 0}
      onClick=${() => step(-1)}><${Icon} name="left" /></button>
    <span>${texts.chat.version(index + 1, ids.length)}</span>
    <button type="button" class="quiet" aria-label=${texts.chat.next} aria-disabled=${index === ids.length - 1}
      onClick=${() => step(1)}><${Icon} name="right" /></button>
  </span>`;
}

function Copy({ text }) {
  const [label, say] = useState(texts.chat.copy);
  const press = async () => {
    say((await copy(text)) ? texts.chat.copied : texts.chat.notCopied);
    setTimeout(() => say(texts.chat.copy), SHOWN_MS);
  };
  return html`<button type="button" class="quiet" onClick=${press}>
    <${Icon} name="copy" /><span>${label}</span>
  </button>`;
}
