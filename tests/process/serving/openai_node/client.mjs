// OpenAI's client, which does what a line of standard input says and answers on one of standard output.
import { createInterface } from "node:readline";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", timeout: 60_000 });

function tell(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

// Of a stream, that it has begun is told first; it is left after `pieces`, if any are given.
async function ask({ prompt, tokens, retries, stream, pieces }) {
  let [text, reason, heard] = ["", null, 0];
  try {
    const body = { model: "demo", prompt, max_tokens: tokens, temperature: 0, ignore_eos: true, stream };
    const answer = await client.completions.create(body, { maxRetries: retries });
    for await (const { choices } of stream ? answer : [answer]) {
      text += choices[0].text;
      reason = choices[0].finish_reason;
      heard += 1;
      if (stream && heard === 1) tell({ begun: true });
      if (heard === pieces) answer.controller.abort();
    }
    return { text, reason };
  } catch (error) {
    return { text, reason, error: { name: error.constructor.name, status: error.status, code: error.code, message: error.message } };
  }
}

for await (const line of createInterface({ input: process.stdin })) tell(await ask(JSON.parse(line)));
