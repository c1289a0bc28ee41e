// Codex, as its command line is used in scripts: a chat, and what it sends after the call of a tool.
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { QUESTION, URL_OF, use } from "./using.mjs";

const home = mkdtempSync(join(tmpdir(), "codex-"));
const config = `model = "demo"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "${URL_OF}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`;
writeFileSync(join(home, "config.toml"), config);
const env = { ...process.env, HOME: home, CODEX_HOME: home };

await use("an agent with tools");
const codex = join(import.meta.dirname, "node_modules", ".bin", "codex");
const ended = spawnSync(codex, ["exec", "--skip-git-repo-check", QUESTION], {
  env, cwd: mkdtempSync(join(tmpdir(), "work-")), stdio: ["ignore", "ignore", "inherit"], timeout: 120_000,
});
process.exit(ended.status ?? 1);
