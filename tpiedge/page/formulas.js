// Finds TeX formulas in Markdown. They stand between \( \), \[ \], $$ $$, or $ $ as Pandoc reads it, so that prices
// stay prices. What is in them is no Markdown. maths.js shows them; until it is loaded, and where it finds no TeX, they
// stay as they are.

// The limits bound the work for a text that opens many formulas and closes none.
const display = String.raw`\\\[[^]{1,4000}?(?<!\\)\\\]|\$\$[^]{1,4000}?\$\$`;
const inline = String.raw`\\\([^]{1,4000}?(?<!\\)\\\)|\$(?![\s$])(?:\\[^]|[^\\$\n]){1,4000}(?<!\s)\$(?![\w$])`;
const OF_ITS_OWN = new RegExp(String.raw`^ {0,3}(${display})[ \t]*(?:\n+|$)`);
const IN_TEXT = new RegExp(`^(?:(${display})|${inline})`);

// Extensions of Marked. `escaped` makes HTML of text.
export function formulas(escaped) {
  const renderer = ({ text, shown }) => `<code class="maths${shown ? " display" : ""}">${escaped(text)}</code>`;
  return [
    {
      name: "formulas",
      level: "block",
      start: (text) => text.search(/^ {0,3}(?:\\\[|\$\$)/m),
      tokenizer(text) {
        const [raw, formula] = OF_ITS_OWN.exec(text) ?? [];
        return raw && { type: "formulas", raw, text: formula, shown: true };
      },
      renderer: (token) => `<p>${renderer(token)}</p>`,
    },
    {
      name: "formula",
      level: "inline",
      start: (text) => text.search(/(?<!\\)\\[([]|(?<![\w\\$])\$/),
      tokenizer(text) {
        const [raw, shown] = IN_TEXT.exec(text) ?? [];
        return raw && { type: "formula", raw, text: raw, shown };
      },
      renderer,
    },
  ];
}

// The TeX between the marks of a formula.
export function texOf(formula) {
  const mark = /^\$(?!\$)/.test(formula) ? 1 : 2;
  return formula.slice(mark, -mark).trim();
}
