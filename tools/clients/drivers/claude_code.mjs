// Claude Code, as its command line is used in scripts: a chat, and what it sends after the call of a tool.
import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { QUESTION, URL_OF, use } from "./using.mjs";

const home = mkdtempSync(join(tmpdir(), "claude-"));
const env = {
  ...process.env, HOME: home, ANTHROPIC_BASE_URL: URL_OF, ANTHROPIC_API_KEY: "none", ANTHROPIC_MODEL: "demo",
  ANTHROPIC_SMALL_FAST_MODEL: "demo", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_TELEMETRY: "1",
  CLAUDE_CODE_MAX_OUTPUT_TOKENS: "64",
};

await use("an agent with tools");
const claude = join(import.meta.dirname, "node_modules", "@anthropic-ai", "claude-code", "cli-wrapper.cjs");
const ended = spawnSync(process.execPath, [claude, "-p", QUESTION, "--max-turns", "2", "--tools", "Bash,Read"], {
  env, cwd: mkdtempSync(join(tmpdir(), "work-")), stdio: ["ignore", "ignore", "inherit"], timeout: 120_000,
});
process.exit(ended.status ?? 1);
