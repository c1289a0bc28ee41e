import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";
import { QUESTION, URL_OF, drain, use } from "./using.mjs";

setTracingDisabled(true);
const Answer = z.object({ answer: z.string() });
const weather = tool({
  name: "get_weather",
  description: "The weather in a city",
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `Sunny in ${city}`,
});

for (const [name, useResponses] of [["chat", false], ["responses", true]]) {
  const provider = new OpenAIProvider({ apiKey: "none", baseURL: `${URL_OF}/v1`, useResponses });
  const runner = new Runner({ modelProvider: provider, tracingDisabled: true });
  const told = { name: "teller", instructions: "You tell stories.", model: "demo", modelSettings: { maxTokens: 48 } };
  await use(name);
  await runner.run(new Agent(told), QUESTION);
  await use(`${name} stream`);
  await drain(await runner.run(new Agent(told), QUESTION, { stream: true }));
  await use(`${name} tools`);
  await runner.run(new Agent({ ...told, tools: [weather] }), QUESTION);
  await use(`${name} structured output`);
  await runner.run(new Agent({ ...told, outputType: Answer }), QUESTION);
}
