// Tests of where formulas are in Markdown.

import assert from "node:assert/strict";
import test from "node:test";
import { formulas, texOf } from "../../../tpiedge/page/formulas.js";
import { Marked } from "../../../tpiedge/page/vendor/marked/marked.esm.js";

const marked = new Marked({ gfm: true, breaks: true });
marked.use({ extensions: formulas((text) => text) });

// The formulas of a text, those that stand alone in brackets.
function found(markdown) {
  const shown = [...marked.parse(markdown).matchAll(/<code class="maths( display)?">([^]*?)<\/code>/g)];
  return shown.map(([, display, formula]) => (display ? [texOf(formula)] : texOf(formula)));
}

const cases = {
  "Markdown does not eat their marks": [String.raw`Is \(a_1 * b_1 * c\)?`, ["a_1 * b_1 * c"]],
  "marks of display, in a line and alone": [String.raw`\[x\] and $$y$$`, [["x"], ["y"]]],
  "lines that Markdown reads otherwise": ["So:\n\\[\n- a \\\\[2pt]\n= b\n\\]\nthen", [["- a \\\\[2pt]\n= b"]]],
  "an empty line within": ["$$\na\n\nb\n$$", [["a\n\nb"]]],
  "in a list, a table and bold": ["1. **\\(a\\)**\n   $$b$$\n\n|x|\n|-|\n|\\(c\\)|", ["a", ["b"], "c"]],
  "single dollars": [String.raw`with $x_1$, $\{y\}$ and $-z$.`, ["x_1", String.raw`\{y\}`, "-z"]],
  "prices and variables": ["$5 and $6, $5-$6, US$5, $HOME/$USER, a $ b $ c, \\$5 and \\$6", []],
  "code": ["`\\(x\\)` and `$x$`\n\n```\n\\[x\\]\n$$y$$\n```", []],
  "what does not end, or is escaped": ["\\(a and \\[b and $$c and \\\\(d\\\\)", []],
};
for (const [name, [markdown, expected]] of Object.entries(cases)) {
  test(name, () => assert.deepEqual(found(markdown), expected));
}
