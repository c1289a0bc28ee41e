// The view of the cluster: machines, workers that wait to join, requests, the plan and recent events.

import { html, useEffect, useRef, useState } from "./vendor/htm/standalone.module.js";
import { AddMachine } from "./add.js";
import { Sparkline } from "./bars.js";
import { useChanges } from "./changes.js";
import { Dialog } from "./dialog.js";
import { Details, Machine, Said, STEP_PARTS, titleOf } from "./machine.js";
import { texts } from "./texts.js";
import { Timeline } from "./timeline.js";
import { cluster } from "./watch.js";

const words = texts.cluster;
const EVENTS = 30;
// In place of a machine, where one more is asked about.
const ONE_MORE = { name: "" };

export function Cluster() {
  useChanges(cluster);
  useEffect(() => cluster.watch(), []);
  const { picture } = cluster;
  if (cluster.locked) return html`<${Locked} />`;
  return html`<div class="cluster">
    ${cluster.problem && html`<p class="problem" role="alert">${cluster.problem}
      <button type="button" onClick=${() => cluster.unlock()}>${words.again}</button></p>`}
    ${picture
      ? html`<fieldset class="picture" disabled=${Boolean(cluster.problem)}>
          <${Picture} picture=${picture} /></fieldset>`
      : html`<p class="muted">${words.looking}</p>`}
  </div>`;
}

function Locked() {
  return html`<div class="cluster locked">
    <h1>${words.title}</h1>
    ${cluster.noEntry && html`<p class="problem" role="alert">${cluster.noEntry}</p>`}
    <p>${words.locked}</p>
    <p>${words.lockedHow} <code>${words.lockedType}</code></p>
    <p>${words.lockedElse} <code>${words.lockedKey}</code></p>
    <button type="button" class="primary" onClick=${() => cluster.unlock()}>${words.unlock}</button>
  </div>`;
}

function Picture({ picture }) {
  const [asked, ask] = useState(null);
  const [answer, say] = useState(null); // the last one: `about` a machine by its name, ONE_MORE or a request
  const order = async (about, path, options, predicted) => {
    say(null);
    try {
      const found = await cluster.order(path, options);
      if (predicted) say({ about, text: predicted(found, stepOf(cluster.picture)), of: planOf(cluster.picture) });
    } catch (error) {
      say({ about, failed: error.message, of: planOf(cluster.picture) });
    }
  };
  const predict = ({ name }, query, predicted) => order(name, `whatif?${query}`, { method: "GET" }, predicted);
  const less = (machine) => {
    const predicted = (...found) => words.less(titleOf(machine), ...found);
    return predict(machine, `without=${encodeURIComponent(machine.name)}`, predicted);
  };
  const confirmed = () => {
    ask(null);
    const { kind, id, machine } = asked;
    if (kind === "cancel") order(id, `requests/${encodeURIComponent(id)}`, { method: "DELETE" });
    else order(machine.name, `nodes/${kind}`, { body: { name: machine.name } });
  };
  // What was predicted or refused of other machines, or of another plan, is true no more.
  const said = answer?.of && answer.of !== planOf(picture) ? null : answer;
  const saidOf = (about) => said?.about === about && html`<${Said} said=${said} close=${() => say(null)} />`;
  const placed = [ONE_MORE.name, ...picture.machines.map(({ name }) => name)];
  return html`
    <${Summary} picture=${picture} />
    ${picture.waiting.length > 0 && html`<${Waiting} waiting=${picture.waiting} />`}
    <section aria-labelledby="machines-title">
      <h2 id="machines-title">${words.machines}</h2>
      <div class="machines">
        ${picture.machines.map((machine) => html`<${Machine} key=${machine.name} machine=${machine}
          ask=${(kind, which) => ask({ kind, machine: which })}
          predict=${less} said=${saidOf(machine.name)}
          undrain=${({ name }) => order(name, "nodes/undrain", { body: { name } })}
          clear=${({ name }) => order(name, "nodes/clear", { body: { name } })} />`)}
      </div>
      <${AddMachine} />
      ${picture.machines.length > 1 && html`<div class="one-more">
        <button type="button" onClick=${() => predict(ONE_MORE, "more=1", words.more)}>
          ${words.whatIfMore}</button>${saidOf(ONE_MORE.name)}</div>`}
      <${Words} />
    </section>
    ${picture.timeline?.took_s > 0 && html`<${Timeline} timeline=${picture.timeline} />`}
    <${Requests} requests=${picture.requests} cancel=${({ id, sender }) => ask({ kind: "cancel", id, sender })} />
    ${said && !placed.includes(said.about) && saidOf(said.about)}
    <${Events} events=${picture.events} />
    ${asked && html`<${Confirmation} asked=${asked} confirm=${confirmed} cancel=${() => ask(null)} />`}`;
}

// The seconds that a step takes, as measured; 0 where none is taken.
function stepOf({ machines }) {
  const step = machines.find(({ rank }) => rank === 0)?.step;
  return step ? STEP_PARTS.reduce((sum, name) => sum + step[`${name}_s`], 0) : 0;
}

// What a prediction or a refusal is of: it is another one as soon as a machine or the plan is.
function planOf({ epoch, machines }) {
  return JSON.stringify([epoch, machines.map(({ name, state }) => [name, state])]);
}

function Words() {
  return html`<details class="words">
    <summary>${words.wordsTitle}</summary>
    <dl>${words.wordsOf.map(([word, meaning]) => html`<div key=${word}><dt>${word}</dt><dd>${meaning}</dd></div>`)}</dl>
  </details>`;
}

// Whether the model can be asked, as far as is known.
function Readiness({ ready, asleep }) {
  if (cluster.problem) {
    return html`<span class="pill unseen" role="status">
      ${cluster.unreachable ? words.unreachable : words.notSeen}</span>`;
  }
  return html`<span class=${ready ? "pill ready" : "pill"} role="status">
    ${ready ? words.ready : asleep ? words.asleep : words.notReady}</span>`;
}

function Summary({ picture }) {
  const { totals } = picture;
  const figures = [
    [words.rate, words.perSecond(totals.tokens_per_s), html`<${Sparkline} values=${cluster.rates} />`],
    [words.running, totals.running],
    [words.queued, totals.queued],
    [words.guesses, words.partOf(totals.accepted, totals.drafted)],
    [words.kv, words.partOf(totals.kv_pages_used, totals.kv_pages)],
  ];
  const allReduce = picture.collective.token ? [[words.collective, words.collectiveOf(picture.collective)]] : [];
  return html`<header class="cluster-head">
    <h1>${picture.model.name}</h1>
    <${Readiness} ready=${picture.ready} asleep=${picture.asleep} />
    ${picture.next && html`<span class="muted">${words.nextModel(picture.next)}</span>`}
    ${picture.reason && html`<p class="why">${picture.reason}</p>`}
    <dl class="figures">
      ${figures.map(([name, value, more]) => html`<div key=${name}><dt>${name}</dt><dd>${value}${more}</dd></div>`)}
    </dl>
    <${Details} facts=${allReduce} />
  </header>`;
}

function Waiting({ waiting }) {
  const field = useRef(null);
  const [failed, fail] = useState("");
  const [busy, work] = useState(false);
  const approve = async (event) => {
    event.preventDefault();
    const code = field.current.value.trim();
    if (!code) return;
    work(true);
    fail("");
    try {
      await cluster.order("nodes/approve", { body: { code } });
      if (field.current) field.current.value = "";
    } catch (error) {
      fail(error.message);
    }
    work(false);
  };
  return html`<section class="waiting" aria-labelledby="waiting-title">
    <h2 id="waiting-title">${words.waiting(waiting.length)}</h2>
    <ul>${waiting.map((one) => html`<li key=${`${one.name} ${one.address}`}>
      <b>${one.name}</b> ${words.from(one.address)}</li>`)}</ul>
    <form onSubmit=${approve}>
      <label for="code">${words.code}</label>
      <div class="with-button">
        <input id="code" ref=${field} autocomplete="off" autocapitalize="characters" spellcheck=${false} maxlength="32"
          placeholder=${words.codeHint} aria-describedby="code-why" onInput=${() => fail("")} />
        <button type="submit" class="primary" disabled=${busy}>${words.approve}</button>
      </div>
      <p id="code-why" class="muted">${words.codeWhy}</p>
      ${failed && html`<p class="error" role="alert">${failed}</p>`}
    </form>
  </section>`;
}

function Requests({ requests, cancel }) {
  return html`<section aria-labelledby="requests-title">
    <h2 id="requests-title">${words.requests}</h2>
    ${requests.length === 0
      ? html`<p class="muted">${words.noRequests}</p>`
      : html`<div class="scrolls" role="region" aria-labelledby="requests-title" tabindex="0"><table class="requests">
          <thead><tr>${words.columns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}
            <th><span class="visually-hidden">${words.actions}</span></th></tr></thead>
          <tbody>${requests.map((one) => html`<${RequestRow} key=${one.id} one=${one} cancel=${cancel} />`)}</tbody>
        </table></div>`}
  </section>`;
}

function RequestRow({ one, cancel }) {
  const sender = words.sender(one.sender);
  return html`<tr>
    <th scope="row" class="sender" title=${sender}>${sender}</th>
    <td>${words.requestStates[one.state] ?? one.state}
      ${one.sender && html`<span class="sent-by muted">${words.senderOf(sender)}</span>`}
      ${one.why && html`<p class="why">${words.pauses(one)}</p>`}</td>
    <td>${one.age_s === null ? words.unknown : words.age(one.age_s)}</td>
    <td>${one.reading
      ? html`<progress max=${one.reading.of_tokens} value=${one.reading.done_tokens}
          aria-label=${words.readOf(one.reading)}></progress>${" "}${words.readOf(one.reading)}`
      : words.whole(one.prompt_tokens)}</td>
    <td><progress max=${one.max_tokens} value=${one.tokens} aria-label=${words.tokensOf(one)}></progress>${" "}
      ${words.tokensOf(one)}</td>
    <td>${one.tokens_per_s ? words.perSecond(one.tokens_per_s) : words.unknown}</td>
    <td><code>${one.id}</code></td>
    <td><button type="button" aria-label=${words.cancelOf(one.id)} onClick=${() => cancel(one)}>
      ${words.cancelDo}</button></td>
  </tr>`;
}

function Events({ events }) {
  const latest = events[0];
  return html`<section aria-labelledby="events-title">
    <h2 id="events-title">${words.events}</h2>
    <p class="visually-hidden" aria-live="polite">${latest && words.event(latest)}</p>
    ${events.length === 0
      ? html`<p class="muted">${words.noEvents}</p>`
      : html`<ol class="events">
          ${events.slice(0, EVENTS).map((event) => html`<li key=${`${event.at} ${event.kind} ${event.machine}`}
            class="event-${event.kind.replace(" ", "-")}">
            <time datetime=${new Date(event.at * 1000).toISOString()}>${words.when(event.at)}</time>
            <span>${words.event(event)}</span></li>`)}
        </ol>`}
  </section>`;
}

function Confirmation({ asked, confirm, cancel }) {
  const { kind, machine, id, sender } = asked;
  const said = machine
    ? words.ask[kind](titleOf(machine)) : words.ask[kind](sender ? ` ${words.senderOf(words.sender(sender))}` : "", id);
  return html`<${Dialog} name="ask-title" why="ask-why" cancel=${cancel}>
    <h2 id="ask-title">${said.title}</h2>
    <p id="ask-why">${said.why}</p>
    <div class="actions">
      <button type="button" onClick=${cancel}>${words.keep}</button>
      <button type="button" class=${kind === "drain" ? "primary" : "danger"} onClick=${confirm}>
        ${said.go}</button>
    </div>
  <//>`;
}
