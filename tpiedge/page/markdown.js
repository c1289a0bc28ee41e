// Shows a model's Markdown, sanitised. Three fences: HTML in it is text, DOMPurify lets only what is
// listed below through, and the page's policy runs no script that is not the server's own.

import DOMPurify from "./vendor/dompurify/purify.min.js";
import { Component, html } from "./vendor/htm/standalone.module.js";
import { Marked } from "./vendor/marked/marked.esm.js";
import { copyButton } from "./copy.js";
import { formulas, texOf } from "./formulas.js";
import { texts } from "./texts.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a b blockquote br code del em h3 h4 h5 h6 hr i li ol p pre s strong sub sup".split(" "),
    ..."table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};
const ALLOWED_IN_CODE = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
// Rendering has at most one part of so many of the time while an answer arrives.
const PART = 6;
const LOWEST = 6;
// Messages are below the second level.
const BELOW = 2;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    html: ({ text }) => escaped(text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(depth + BELOW, LOWEST);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    // The page loads nothing from elsewhere: a picture is a link to it.
    image({ href, text }) {
      return `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
    },
  },
});
marked.use({ extensions: formulas(escaped) });

function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (letter) => names[letter]);
}

// Shows `text`, of which more may follow until it is `done`. What does not change is not rendered again.
export class Markdown extends Component {
  #timer = null;
  #notBefore = 0;
  #shown = { text: null, done: false, blocks: [] };

  componentWillUnmount() {
    clearTimeout(this.#timer);
  }

  render({ text, done }) {
    const now = performance.now();
    if (text !== this.#shown.text || done !== this.#shown.done) {
      if (done || now >= this.#notBefore) this.#shown = { text, done, blocks: blocksOf(text) };
      else this.#timer ??= setTimeout(() => this.#again(), this.#notBefore - now);
      this.#notBefore = Math.max(this.#notBefore, now + PART * (performance.now() - now));
    }
    const { blocks } = this.#shown;
    return html`<div class="markdown">
      ${blocks.map(
        (token, index) =>
          html`<${Block} key=${index} token=${token} whole=${this.#shown.done || index < blocks.length - 1} />`,
      )}
    </div>`;
  }

  #again() {
    this.#timer = null;
    this.forceUpdate();
  }
}

function blocksOf(text) {
  try {
    return marked.lexer(text).filter((token) => token.type !== "space");
  } catch {
    return [{ type: "text", raw: text, text, tokens: undefined }]; // nested too deeply
  }
}

class Block extends Component {
  shouldComponentUpdate({ token, whole }) {
    return token.raw !== this.props.token.raw || whole !== this.props.whole;
  }

  componentDidMount() {
    this.#fill();
  }

  componentDidUpdate() {
    this.#fill();
  }

  render() {
    return html`<div class="block" ref=${(element) => (this.element = element)}></div>`;
  }

  #fill() {
    const fragment = DOMPurify.sanitize(markupOf(this.props.token), ALLOWED);
    for (const link of fragment.querySelectorAll("a")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer";
    }
    for (const table of fragment.querySelectorAll("table")) scrollable(table, texts.chat.table);
    for (const code of fragment.querySelectorAll("pre > code")) frame(code, this.props.whole);
    for (const code of fragment.querySelectorAll("code.maths")) typeset(code);
    this.element.replaceChildren(fragment);
  }
}

function markupOf(token) {
  try {
    return marked.parser([token]);
  } catch {
    return `<p>${escaped(token.raw)}</p>`;
  }
}

// Puts `element` into one that scrolls, by keys too.
function scrollable(element, name) {
  const around = document.createElement("div");
  around.className = "scrolls";
  around.tabIndex = 0;
  around.setAttribute("role", "group");
  around.setAttribute("aria-label", name);
  element.replaceWith(around);
  around.append(element);
}

// Code with its language, a button that copies it and, once it is whole, colours.
function frame(code, whole) {
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const framed = document.createElement("div");
  const head = document.createElement("div");
  const name = document.createElement("span");
  const pre = code.parentElement;
  framed.className = "code";
  head.className = "code-head";
  name.textContent = language;
  head.append(name, copyButton(() => code.textContent, texts.chat.copyCode));
  pre.replaceWith(framed);
  framed.append(head, pre);
  scrollable(pre, texts.chat.code);
  if (whole && language) colour(code, language);
}

async function typeset(code) {
  try {
    const { mathsOf } = await import("./maths.js");
    const display = code.classList.contains("display");
    const found = mathsOf(texOf(code.textContent), display);
    if (found === null) return;
    code.replaceWith(found);
    if (display) scrollable(found, texts.chat.formula);
  } catch (error) {
    console.info(error); // as below
  }
}

async function colour(code, language) {
  try {
    const { coloured } = await import("./code.js");
    const markup = coloured(code.textContent, language);
    if (markup !== null) code.replaceChildren(DOMPurify.sanitize(markup, ALLOWED_IN_CODE));
  } catch (error) {
    console.info(error); // the server has another version of the page by now: the code stays plain
  }
}
