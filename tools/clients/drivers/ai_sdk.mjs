import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { QUESTION, SCHEMA, TOOL, URL_OF, drain, use } from "./using.mjs";

const baseURL = `${URL_OF}/v1`;
const compatible = createOpenAICompatible({
  name: "here", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  compatible: compatible("demo"),
  chat: openai.chat("demo"),
  responses: openai.responses("demo"),
  messages: createAnthropic({ baseURL, apiKey: "none" })("demo"),
  ollama: createOllama({ baseURL: `${URL_OF}/api` })("demo"),
};
const { description, parameters } = TOOL.function;
const inputSchema = jsonSchema({ ...parameters, additionalProperties: false });
const get_weather = tool({ description, inputSchema, execute: ({ city }) => `Sunny in ${city}` });
const few = { prompt: QUESTION, maxOutputTokens: 48, maxRetries: 0 };

for (const [name, model] of Object.entries(models)) {
  await use(`${name} chat`);
  await generateText({ ...few, model, system: "You tell stories." });
  await use(`${name} stream`);
  await drain(streamText({ ...few, model }).textStream);
  await use(`${name} tools`);
  await generateText({ ...few, model, tools: { get_weather }, stopWhen: stepCountIs(2) });
  await use(`${name} structured output`);
  await generateText({ ...few, model, output: Output.object({ schema: jsonSchema(SCHEMA) }) });
}
await use("embeddings");
await embedMany({ model: compatible.textEmbeddingModel("demo"), values: [QUESTION, "Once"], maxRetries: 0 });
