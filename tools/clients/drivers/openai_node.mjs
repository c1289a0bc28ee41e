import OpenAI from "openai";
import { QUESTION, SCHEMA, TOOL, URL_OF, drain, use } from "./using.mjs";

const client = new OpenAI({ baseURL: `${URL_OF}/v1`, apiKey: "none", maxRetries: 0 });
const model = "demo";
const messages = [{ role: "system", content: "You tell stories." }, { role: "user", content: QUESTION }];

await use("models");
await client.models.list();
await use("chat");
await client.chat.completions.create({ model, messages, max_tokens: 8 });
await use("chat stream");
await drain(await client.chat.completions.create({ model, messages, max_tokens: 8, stream: true }));
await use("chat stream helper");
await client.chat.completions.stream({ model, messages, max_tokens: 8 }).finalChatCompletion();
await use("tools");
await client.chat.completions.create({ model, messages, max_tokens: 8, tools: [TOOL], tool_choice: "auto" });
await use("structured output");
const format = { type: "json_schema", json_schema: { name: "answer", schema: SCHEMA, strict: true } };
await client.chat.completions.create({ model, messages, max_tokens: 48, response_format: format });
await use("completions");
await client.completions.create({ model, prompt: QUESTION, max_tokens: 8 });
await use("embeddings");
await client.embeddings.create({ model, input: [QUESTION, "Once"] });
await use("responses");
await client.responses.create({ model, input: QUESTION, max_output_tokens: 16 });
await use("responses stream");
await drain(await client.responses.create({ model, input: QUESTION, max_output_tokens: 16, stream: true }));
