import { Ollama } from "ollama";
import { QUESTION, SCHEMA, TOOL, URL_OF, drain, use } from "./using.mjs";

const client = new Ollama({ host: URL_OF });
const model = "demo";
const messages = [{ role: "user", content: QUESTION }];
const options = { num_predict: 8 };

await use("models");
await client.list();
await client.show({ model });
await client.ps();
await client.version();
await use("chat");
await client.chat({ model, messages, options });
await use("chat stream");
await drain(await client.chat({ model, messages, options, stream: true }));
await use("chat tools");
await client.chat({ model, messages, options, tools: [TOOL] });
await use("chat structured output");
await client.chat({ model, messages, options: { num_predict: 48 }, format: SCHEMA });
await use("generate");
await client.generate({ model, prompt: QUESTION, options });
await use("generate stream");
await drain(await client.generate({ model, prompt: QUESTION, options, stream: true }));
await use("embed");
await client.embed({ model, input: [QUESTION, "Once"] });
await client.embeddings({ model, prompt: QUESTION });
