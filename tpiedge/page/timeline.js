// Draws what all machines did in one step, over one axis of milliseconds.

import { html } from "./vendor/htm/standalone.module.js";
import { titleOf } from "./machine.js";
import { texts } from "./texts.js";

const words = texts.cluster;
const PARTS = ["compute", "wait", "network", "disk"];
// Of the drawing; it is stretched to the width of the page.
const WIDTH = 1000;
const TICKS = 5;
// A tick beyond this part of the axis has no room for its label, on a phone.
const LAST_LABEL = 0.86;

export function Timeline({ timeline }) {
  const { machines, took_s } = timeline;
  const ticks = ticksOf(1000 * took_s);
  return html`<section class="timeline" aria-labelledby="timeline-title">
    <h2 id="timeline-title">${words.timeline}</h2>
    <p class="muted">${words.timelineOf(timeline)}</p>
    <div class="timeline-rows" aria-hidden="true">
      ${machines.map((machine) => html`<span key=${`n${machine.rank}`} class="timeline-name">${titleOf(machine)}</span>
        <svg key=${`s${machine.rank}`} viewBox="0 0 ${WIDTH} 1" preserveAspectRatio="none">
          ${PARTS.map((part) =>
            html`<path key=${part} class="lane-${part}" d=${laneOf(machine.spans[part], took_s)} />`)}
        </svg>`)}
      <span></span>
      <div class="timeline-axis">
        ${ticks.map((ms) => html`<span key=${ms} style=${{ left: `${ms / took_s / 10}%` }}>
          ${ms <= LAST_LABEL * 1000 * took_s && words.ms(ms)}</span>`)}
      </div>
    </div>
    <ul class="bar-parts" aria-hidden="true">
      ${PARTS.map((part) => html`<li key=${part}>
        <span class="swatch series-${part}"></span>${words.step[part]}</li>`)}
    </ul>
    <div class="visually-hidden"><table>
      <caption>${words.timelineOf(timeline)}</caption>
      <thead><tr><th scope="col">${words.machine}</th>
        ${PARTS.map((part) => html`<th key=${part} scope="col">${words.step[part]}</th>`)}</tr></thead>
      <tbody>${machines.map((machine) => html`<tr key=${machine.rank}><th scope="row">${titleOf(machine)}</th>
        ${PARTS.map((part) => html`<td key=${part}>${words.seconds(machine[`${part}_s`])}</td>`)}</tr>`)}</tbody>
    </table></div>
  </section>`;
}

// Rectangles for the spans of one part.
export function laneOf(spans, took_s) {
  const at = (s) => (s / took_s) * WIDTH;
  return spans.map(([start, end]) => {
    const width = (at(end) - at(start)).toFixed(2);
    return `M${at(start).toFixed(2)} 0h${width}v1h-${width}z`;
  }).join("");
}

// Round numbers of milliseconds from 0 to `ms`, a few of them.
export function ticksOf(ms) {
  const power = 10 ** Math.floor(Math.log10(ms / TICKS));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => TICKS * one >= ms);
  return Array.from({ length: Math.floor(ms / step) + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}
