import { constructLlmApi } from "@continuedev/openai-adapters";
import { QUESTION, TOOL, URL_OF, drain, use } from "./using.mjs";

const api = constructLlmApi({ provider: "openai", apiKey: "none", apiBase: `${URL_OF}/v1/` });
const claude = constructLlmApi({ provider: "anthropic", apiKey: "none", apiBase: `${URL_OF}/v1/` });
const model = "demo";
const messages = [{ role: "system", content: "You tell stories." }, { role: "user", content: QUESTION }];
const signal = new AbortController().signal;

await use("chat stream");
await drain(api.chatCompletionStream({ model, messages, max_tokens: 8, stream: true }, signal));
await use("chat");
await api.chatCompletionNonStream({ model, messages, max_tokens: 8, stream: false }, signal);
await use("tools");
await drain(api.chatCompletionStream({ model, messages, max_tokens: 8, stream: true, tools: [TOOL] }, signal));
await use("completions stream");
await drain(
  api.completionStream({ model, prompt: QUESTION, max_tokens: 8, stop: ["\n\n"], stream: true }, signal),
);
await use("fill in the middle");
await drain(api.fimStream({ model, prompt: QUESTION, suffix: "The end", max_tokens: 8, stream: true }, signal));
await use("embeddings");
await api.embed({ model, input: [QUESTION, "Once"] });
await use("models");
await api.list();
await use("messages stream");
await drain(claude.chatCompletionStream({ model, messages, max_tokens: 8, stream: true }, signal));
