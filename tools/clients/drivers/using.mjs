// What every driver in JavaScript needs: where the server is, and to say what is used next.
export const URL_OF = process.env.RECORD_URL;
export const QUESTION = "Tell me a story";
export const SCHEMA = {
  type: "object",
  properties: { answer: { type: "string", maxLength: 40 } },
  required: ["answer"],
  additionalProperties: false,
};
export const TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "The city's name" } },
      required: ["city"],
    },
  },
};

export async function use(name) {
  const answer = await fetch(`${URL_OF}/record/${name.replaceAll(" ", "_")}`);
  await answer.text();
}

export async function drain(stream) {
  for await (const _ of stream);
}
