// The input of the next message, its keys, and the buttons to send and stop.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { chats } from "./chats.js";
import { Icon } from "./icons.js";
import { texts } from "./texts.js";

// Where there is no keyboard but one on the screen, Enter is a new line.
const touched = matchMedia("(hover: none) and (pointer: coarse)");

// Has the next keys go to the message. Where that would bring up a keyboard over the answer, to what was said.
export function focusMessage() {
  document.querySelector(touched.matches ? ".messages" : "#message")?.focus();
}

// Whether a key that was pressed in a message sends it. Shift, or Enter on a screen, makes a new line.
export function sends({ key, shiftKey, ctrlKey, metaKey, isComposing }) {
  return key === "Enter" && !isComposing && (ctrlKey || metaKey || !(shiftKey || touched.matches));
}

// What was typed and not sent, by the conversation.
const drafts = new Map();

// `conversation` is its id, "" for a new one; `answering` the node of the answer that is being made, if one is.
export function Composer({ conversation, answering, send }) {
  const [text, set] = useState(drafts.get(conversation) ?? "");
  const type = (typed) => {
    drafts.set(conversation, typed);
    set(typed);
  };
  const field = useRef(null);
  useLayoutEffect(() => fit(field.current), [text]);
  useLayoutEffect(() => {
    if (!touched.matches) field.current.focus();
  }, []);
  const submit = (event) => {
    event?.preventDefault();
    if (answering || !text.trim()) return;
    send(text);
    type("");
    if (!touched.matches) field.current.focus(); // else a keyboard would cover the answer
  };
  const stop = () => {
    chats.stop(answering);
    focusMessage(); // the button goes
  };
  const pressed = (event) => {
    if (event.key === "Escape" && answering && !event.isComposing) chats.stop(answering);
    if (sends(event)) submit(event);
  };
  return html`<form class="composer" onSubmit=${submit}>
    <div class="composer-box">
      <label class="visually-hidden" for="message">${texts.chat.message}</label>
      <textarea id="message" ref=${field} rows="1" value=${text} placeholder=${texts.chat.hint}
        onInput=${(event) => type(event.target.value)} onKeyDown=${pressed}></textarea>
      ${
        answering
          ? html`<button key="stop" type="button" class="round" aria-label=${texts.chat.stop} title=${texts.chat.stop}
              onClick=${stop}><${Icon} name="stop" /></button>`
          : html`<button key="send" type="submit" class="round primary" aria-label=${texts.chat.send}
              title=${texts.chat.send} disabled=${!text.trim()}><${Icon} name="send" /></button>`
      }
    </div>
  </form>`;
}

// As high as its text, within what its style allows.
export function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
