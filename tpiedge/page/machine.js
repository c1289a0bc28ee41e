// One machine in the view of the cluster: its share, memory and time, and buttons (drain, revoke).

import { html } from "./vendor/htm/standalone.module.js";
import { Bar } from "./bars.js";
import { texts } from "./texts.js";

const words = texts.cluster;

// Of a step's time: `compute_s` and so on.
export const STEP_PARTS = ["compute", "wait", "network", "disk"];

export function titleOf(machine) {
  return machine.host || machine.name;
}

// `ask` gets "drain" or "revoke" and the machine, for the user to confirm; `undrain`, `clear` and `predict` the
// machine. `said`: what came of the last of them.
export function Machine({ machine, ask, undrain, clear, predict, said }) {
  const title = titleOf(machine);
  const serves = machine.rank !== null;
  const own = machine.host === "";
  return html`<article class="machine state-${machine.state.replace(" ", "-")}" aria-labelledby="m-${machine.name}">
    <header>
      <h3 id="m-${machine.name}">${title}</h3>
      <span class="pill">${words.states[machine.state] ?? machine.state}</span>
    </header>
    <${Situation} machine=${machine} />
    ${serves && html`
      <${Share} share=${machine.share} />
      <${Memory} memory=${machine.memory} />
      <${Step} step=${machine.step} />`}
    <${Facts} machine=${machine} />
    <${Details} facts=${detailsOf(machine)} />
    ${!own && html`<div class="machine-tools">
      ${machine.state === "left out" && html`<${Tool} name=${words.clear} of=${title} use=${() => clear(machine)} />`}
      ${["drained", "draining"].includes(machine.state)
        ? html`<${Tool} name=${words.undrain} of=${title} use=${() => undrain(machine)} />`
        : machine.state !== "lost" &&
          html`<${Tool} name=${words.drain} of=${title} use=${() => ask("drain", machine)} />`}
      ${serves && html`<${Tool} name=${words.whatIfLess} of=${title} use=${() => predict(machine)} />`}
      <${Tool} name=${words.revoke} of=${title} use=${() => ask("revoke", machine)} />
    </div>`}
    ${said}
  </article>`;
}

// The answer to what the user wanted: `text` where it came, `failed` where it could not be.
export function Said({ said, close }) {
  if (said.failed === undefined) return html`<p class="forecast" role="status">${said.text}</p>`;
  return html`<p class="problem" role="alert">${said.failed}
    <button type="button" onClick=${close}>${words.dismiss}</button></p>`;
}

// A button whose name says to who does not see the card of which machine it is.
function Tool({ name, of, use }) {
  return html`<button type="button" onClick=${use}>
    ${name}<span class="visually-hidden"> ${of}</span></button>`;
}

function Situation({ machine }) {
  const { fetching } = machine;
  const why = machine.state === "drained" ? words.drained : machine.state !== "serving" && machine.why;
  return html`
    ${why && html`<p class="why">${why}</p>`}
    ${machine.silent_s > 0 && html`<p class="why">${words.silent(machine.silent_s)}</p>`}
    ${fetching && html`<label class="fetching">${words.fetching(fetching)}
      <progress max=${fetching.total_bytes} value=${fetching.done_bytes}></progress></label>`}`;
}

function Share({ share }) {
  return html`<dl class="share">
    <dt>${words.share.work}</dt>
    <dd><meter min="0" max="1" value=${share.work} aria-label=${words.share.work}></meter>${" "}
      <b>${words.percent(share.work)}</b></dd>
  </dl>`;
}

// For who knows how models are split; empty where there is nothing to say.
export function Details({ facts }) {
  return facts.length > 0 && html`<details class="details">
    <summary>${words.details}</summary>
    <${FactList} facts=${facts} />
  </details>`;
}

function FactList({ facts }) {
  return html`<dl class="facts-of">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function detailsOf({ host, name, rank, share }) {
  const shares = ["heads", "ffn"].map((kind) => [words.share[kind], words.percent(share[kind])]);
  return [...(host ? [[words.id, name]] : []), ...(rank === null ? [] : [[words.rank, rank], ...shares])];
}

function Memory({ memory }) {
  const parts = ["pinned", "window", "kv", "kv_room", "program", "free"].map((name) => ({
    name: words.memory[name],
    size: memory[`${name}_bytes`],
    series: name,
    words: words.bytes(memory[`${name}_bytes`]),
  }));
  const label = memory.budget_bytes
    ? words.memoryOf(memory.planned_bytes, memory.budget_bytes)
    : words.memoryPlanned(memory.planned_bytes);
  return html`<${Bar} label=${label} parts=${parts} />`;
}

function Step({ step }) {
  if (!step) return html`<p class="muted step-none">${words.stepNone}</p>`;
  const total = STEP_PARTS.reduce((sum, name) => sum + step[`${name}_s`], 0);
  const parts = STEP_PARTS.map((name) => ({
    name: words.step[name],
    size: step[`${name}_s`],
    series: name,
    words: words.seconds(step[`${name}_s`]),
  }));
  return html`<${Bar} label=${words.stepOf(total)} parts=${parts} />`;
}

function Facts({ machine }) {
  const { disk, link, links } = machine;
  const facts = [
    link && [words.link, words.linkOf(link)],
    links.length > 0 && [words.links, words.linksOf(links)],
    disk.held_bytes > 0 && [words.disk, words.diskOf(disk)],
    disk.kv_read_bytes_per_s + disk.kv_written_bytes_per_s > 0 && [words.kvPages, words.kvPagesOf(disk)],
    machine.speed_bytes_per_s > 0 && [words.speed, words.speedOf(machine)],
  ].filter(Boolean);
  return html`
    <${FactList} facts=${facts} />
    ${disk.why && html`<p class="why">${words.notPrefetched(disk.why)}</p>`}`;
}
