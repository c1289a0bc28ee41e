import { Ollama } from "@llamaindex/ollama";
import { OpenAI, OpenAIEmbedding } from "@llamaindex/openai";
import { tool } from "llamaindex";
import { z } from "zod";
import { QUESTION, URL_OF, drain, use } from "./using.mjs";

const served = { model: "demo", apiKey: "none", baseURL: `${URL_OF}/v1`, maxRetries: 0 };
const models = {
  chat: new OpenAI({ ...served, maxTokens: 48 }),
  ollama: new Ollama({ model: "demo", config: { host: URL_OF }, options: { num_predict: 48 } }),
};
const messages = [{ role: "system", content: "You tell stories." }, { role: "user", content: QUESTION }];
const weather = tool({
  name: "get_weather",
  description: "The weather in a city",
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `Sunny in ${city}`,
});

for (const [name, model] of Object.entries(models)) {
  await use(name);
  await model.chat({ messages });
  await use(`${name} stream`);
  await drain(await model.chat({ messages, stream: true }));
  await use(`${name} tools`);
  await model.chat({ messages, tools: [weather] });
}
await use("embeddings");
await new OpenAIEmbedding(served).getTextEmbeddings([QUESTION, "Once"]);
