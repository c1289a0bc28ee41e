import Anthropic from "@anthropic-ai/sdk";
import { QUESTION, SCHEMA, TOOL, URL_OF, drain, use } from "./using.mjs";

const client = new Anthropic({ baseURL: URL_OF, apiKey: "none", maxRetries: 0 });
const asked = { model: "demo", max_tokens: 8, messages: [{ role: "user", content: QUESTION }] };
const tool = { name: "get_weather", description: "The weather in a city", input_schema: TOOL.function.parameters };

await use("models");
await client.models.list();
await use("messages");
await client.messages.create({ ...asked, system: "You tell stories." });
await use("messages stream");
await drain(await client.messages.create({ ...asked, stream: true }));
await use("messages stream helper");
await client.messages.stream(asked).finalMessage();
await use("messages tools");
await client.messages.create({ ...asked, tools: [tool], tool_choice: { type: "auto" } });
await use("messages structured output");
const format = { type: "json_schema", schema: SCHEMA };
await client.messages.create({ ...asked, max_tokens: 48, output_config: { format } });
await use("count tokens");
await client.messages.countTokens({ model: "demo", messages: asked.messages });
