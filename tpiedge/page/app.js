// The shell of the page: its views, which the address names after #, and its header.

import { html, render, useEffect, useState } from "./vendor/htm/standalone.module.js";
import { Chat } from "./chat.js";
import { chats } from "./chats.js";
import { Cluster } from "./cluster.js";
import { KeyDialog, takeKey } from "./keys.js";
import { texts } from "./texts.js";
import { cluster } from "./watch.js";

// Another view: its module and texts, a line here, and in index.html a modulepreload and its style sheet.
// It is mounted while it is shown.
const VIEWS = [
  { name: "chat", title: texts.chat.title, View: Chat, key: "api" },
  { name: "cluster", title: texts.cluster.title, View: Cluster, key: "admin" },
];

const LINK = "#admin=";

// Where each view was left, by its name: the part of the address after #.
const places = new Map();

function shown() {
  const name = location.hash.slice(1).split("/")[0];
  return VIEWS.find((view) => view.name === name) ?? VIEWS[0];
}

// A link that the master printed becomes the view that it opens: neither history nor screen keep its code.
function placeNow() {
  if (location.hash.startsWith(LINK)) {
    const code = location.hash.slice(LINK.length);
    history.replaceState(null, "", "#cluster");
    cluster.enter(code);
  }
  places.set(shown().name, location.hash);
  return location.hash;
}

function App() {
  const [, move] = useState(placeNow);
  const view = shown();
  useEffect(() => {
    const follow = () => {
      if (takeKey()) chats.findModel(); // whoever was asked for a key may have declined
      move(placeNow());
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    document.title = `${view.title} · ${texts.shell.name}`;
  }, [view]);
  return html`
    <a class="skip" href="#content" onClick=${skip}>${texts.shell.skip}</a>
    <header class="shell">
      <span class="name">${texts.shell.name}</span>
      <nav aria-label=${texts.shell.views}>
        ${VIEWS.map(
          ({ name, title }) =>
            html`<a key=${name} href=${places.get(name) || `#${name}`}
              aria-current=${name === view.name ? "page" : null}>${title}</a>`,
        )}
      </nav>
    </header>
    <main id="content" tabindex="-1"><${view.View} key=${view.name} /></main>
    <${KeyDialog} kind=${view.key} />`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

takeKey(); // before anything asks the server
render(html`<${App} />`, document.getElementById("app"));
chats.load();
