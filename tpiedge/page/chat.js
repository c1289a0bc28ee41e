import { html } from "./vendor/htm/standalone.module.js";
import { texts } from "./texts.js";

export function Chat() {
  return html`<section class="chat" aria-label=${texts.chat.title}></section>`;
}
