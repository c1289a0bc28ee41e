import asyncio

import openai
from pydantic import BaseModel
from using import QUESTION, TOOL, URL, use

MODEL = "demo"
CHAT = [{"role": "user", "content": QUESTION}]


class Answer(BaseModel):
    answer: str


def main() -> None:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    use("models")
    client.models.list()
    client.models.retrieve(MODEL)
    use("chat")
    system = {"role": "system", "content": "You tell stories."}
    client.chat.completions.create(model=MODEL, messages=[system, *CHAT], max_tokens=8, temperature=0.7)
    use("chat with newer names")
    developer = {"role": "developer", "content": "You tell stories."}
    client.chat.completions.create(
        model=MODEL, messages=[developer, *CHAT], max_completion_tokens=8, seed=7, top_p=0.9, stop=["\n\n"],
        presence_penalty=0.1, frequency_penalty=0.1, user="somebody", store=False, metadata={"about": "foxes"},
        reasoning_effort="low", verbosity="low", service_tier="auto",
    )  # fmt: skip
    use("chat in turns")
    turns = [*CHAT, {"role": "assistant", "content": "Once."}, {"role": "user", "content": "Go on."}]
    client.chat.completions.create(model=MODEL, messages=turns, max_tokens=8)
    use("chat in parts")
    parts = [{"type": "text", "text": QUESTION}, {"type": "text", "text": "A short one."}]
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=8)
    use("chat stream")
    for _ in client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=8, stream=True, stream_options={"include_usage": True}
    ):
        pass
    use("chat stream helper")
    with client.chat.completions.stream(model=MODEL, messages=CHAT, max_tokens=8) as stream:
        stream.until_done()
    use("chat choices and log probabilities")
    client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=4, n=2, logprobs=True, top_logprobs=2, logit_bias={"5": -1}
    )
    use("tools")
    client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=8, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False
    )
    use("tools result")
    arguments = '{"city": "Paris"}'
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    called = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
    ]
    client.chat.completions.create(model=MODEL, messages=called, max_tokens=8, tools=[TOOL])
    use("tools stream")
    for _ in client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=8, tools=[TOOL], stream=True
    ):
        pass
    use("structured output")
    client.chat.completions.parse(model=MODEL, messages=CHAT, max_tokens=48, response_format=Answer)
    use("json mode")
    client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=48, response_format={"type": "json_object"}
    )
    use("an image")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=8)
    use("completions")
    client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=8)
    client.completions.create(model=MODEL, prompt=[QUESTION, "Once"], max_tokens=4, n=2)
    client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=0, echo=True, logprobs=2)
    client.completions.create(model=MODEL, prompt=[1, 5, 9], max_tokens=4)
    use("completions stream")
    for _ in client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=8, stream=True):
        pass
    use("completions insertion")
    client.completions.create(model=MODEL, prompt=QUESTION, suffix="The end", max_tokens=8)
    use("embeddings")
    client.embeddings.create(model=MODEL, input=QUESTION)
    client.embeddings.create(model=MODEL, input=[QUESTION, "Once"], encoding_format="float")
    client.embeddings.create(model=MODEL, input=[1, 5, 9])
    client.embeddings.create(model=MODEL, input=[[1, 5, 9], [7]], user="somebody")
    use("embeddings of fewer dimensions")
    client.embeddings.create(model=MODEL, input=QUESTION, dimensions=4)
    use("responses")
    client.responses.create(
        model=MODEL, input=QUESTION, instructions="You tell stories.", max_output_tokens=16
    )
    client.responses.create(
        model=MODEL, input=CHAT, max_output_tokens=16, temperature=0.5, top_p=0.9, store=False,
        metadata={"about": "foxes"}, truncation="disabled",
    )  # fmt: skip
    use("responses stream")
    for _ in client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=16, stream=True):
        pass
    use("responses in parts")
    said = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    client.responses.create(model=MODEL, input=said, max_output_tokens=16)
    use("responses tools")
    tool = {"type": "function", **TOOL["function"], "strict": False}
    client.responses.create(model=MODEL, input=QUESTION, tools=[tool], max_output_tokens=16)
    use("responses structured output")
    client.responses.parse(model=MODEL, input=QUESTION, text_format=Answer, max_output_tokens=48)
    use("responses with a state")
    client.responses.create(model=MODEL, input="Go on.", previous_response_id="resp_1", max_output_tokens=16)
    client.close()
    use("chat async")
    asyncio.run(chat())


async def chat() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
        await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8)


main()
