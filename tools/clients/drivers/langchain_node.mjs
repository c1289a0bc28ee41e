import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOllama } from "@langchain/ollama";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { QUESTION, URL_OF, drain, use } from "./using.mjs";

const configuration = { baseURL: `${URL_OF}/v1` };
const served = { model: "demo", apiKey: "none", maxRetries: 0, configuration };
const messages = [new SystemMessage("You tell stories."), new HumanMessage(QUESTION)];
const weather = tool(({ city }) => `Sunny in ${city}`, {
  name: "get_weather", description: "The weather in a city", schema: z.object({ city: z.string() }),
});
const Answer = z.object({ answer: z.string() });
const models = {
  chat: new ChatOpenAI({ ...served, maxTokens: 48 }),
  responses: new ChatOpenAI({ ...served, maxTokens: 48, useResponsesApi: true }),
  ollama: new ChatOllama({ model: "demo", baseUrl: URL_OF, numPredict: 48, maxRetries: 0 }),
};

for (const [name, model] of Object.entries(models)) {
  await use(name);
  await model.invoke(messages);
  await use(`${name} stream`);
  await drain(await model.stream(messages));
  await use(`${name} tools`);
  await model.bindTools([weather]).invoke(messages);
  await use(`${name} structured output`);
  await model.withStructuredOutput(Answer, { name: "answer", includeRaw: true }).invoke(messages);
}
await use("embeddings");
await new OpenAIEmbeddings(served).embedDocuments([QUESTION, "Once"]);
