// Icons, which only repeat the words beside them.

import { html } from "./vendor/htm/standalone.module.js";

const LINES = {
  add: "M8 3v10M3 8h10",
  again: "M13 8a5 5 0 1 1-1.5-3.5L13 6M13 2.5V6H9.5",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M6 5.5h7.5v8H6zM10 5.5v-3H2.5v8H6",
  down: "M8 3v10M3.5 8.5L8 13l4.5-4.5",
  edit: "M3 13l.7-3L11 2.7l2.3 2.3L6 12.3zM9.5 4.2l2.3 2.3",
  left: "M10 3L5 8l5 5",
  list: "M2.5 4h11M2.5 8h11M2.5 12h11",
  remove: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.6 9h5.8l.6-9M7 7v4M9 7v4",
  right: "M6 3l5 5-5 5",
  send: "M8 13.5V3M3.5 7.5L8 3l4.5 4.5",
  settings: "M2 4.5h6M12 4.5h2M2 11.5h2M8 11.5h6M10 2.8v3.4M6 9.8v3.4",
  stop: "M4.5 4.5h7v7h-7z",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
    <path d=${LINES[name]} />
  </svg>`;
}
