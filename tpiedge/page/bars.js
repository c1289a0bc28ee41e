// Draws bars of several parts with a legend, and sparklines.

import { html } from "./vendor/htm/standalone.module.js";

// `parts`: { name, size, series, words }, of which those without size have no place in the bar. `series` names the
// colour. `label` says what the bar is of; whoever cannot see it reads the words.
export function Bar({ label, parts }) {
  const total = parts.reduce((sum, { size }) => sum + size, 0);
  const some = parts.filter(({ size }) => size > 0);
  return html`<figure class="bar">
    <figcaption>${label}</figcaption>
    <div class="bar-track" aria-hidden="true">
      ${total > 0 && some.map(({ name, size, series }) =>
        html`<span key=${name} class="series-${series}" style=${{ flexGrow: size / total }}></span>`)}
    </div>
    <ul class="bar-parts">
      ${some.map(({ name, series, words }) => html`<li key=${name}>
        <span class="swatch series-${series}" aria-hidden="true"></span>${name} <b>${words}</b>
      </li>`)}
    </ul>
  </figure>`;
}

const WIDTH = 120;
const HEIGHT = 28;

// A line of what was at the last looks; for the eye alone.
export function Sparkline({ values }) {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1e-9);
  const at = (value, index) =>
    `${((index / (values.length - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 1 - (value / most) * (HEIGHT - 2)).toFixed(1)}`;
  return html`<svg class="sparkline" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
    <polyline points=${values.map(at).join(" ")} />
  </svg>`;
}
