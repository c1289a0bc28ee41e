// Highlights code; loaded when the first code is shown.

import bash from "./vendor/highlight/bash.min.js";
import c from "./vendor/highlight/c.min.js";
import highlighter from "./vendor/highlight/core.min.js";
import cpp from "./vendor/highlight/cpp.min.js";
import diff from "./vendor/highlight/diff.min.js";
import go from "./vendor/highlight/go.min.js";
import ini from "./vendor/highlight/ini.min.js";
import java from "./vendor/highlight/java.min.js";
import javascript from "./vendor/highlight/javascript.min.js";
import json from "./vendor/highlight/json.min.js";
import python from "./vendor/highlight/python.min.js";
import rust from "./vendor/highlight/rust.min.js";
import sql from "./vendor/highlight/sql.min.js";
import typescript from "./vendor/highlight/typescript.min.js";
import xml from "./vendor/highlight/xml.min.js";
import yaml from "./vendor/highlight/yaml.min.js";

const LANGUAGES = { bash, c, cpp, diff, go, ini, java, javascript, json, python, rust, sql, typescript, xml, yaml };
const MOST_CHARACTERS = 50_000;

for (const [name, language] of Object.entries(LANGUAGES)) highlighter.registerLanguage(name, language);

// HTML for `text`; null where the language is not known, or the text is long.
export function coloured(text, language) {
  if (!highlighter.getLanguage(language) || text.length > MOST_CHARACTERS) return null;
  return highlighter.highlight(text, { language, ignoreIllegals: true }).value;
}
