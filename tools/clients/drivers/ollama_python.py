import asyncio

import ollama
from using import QUESTION, SCHEMA, TOOL, URL, use

MODEL = "demo"
CHAT = [{"role": "user", "content": QUESTION}]
FEW = {"num_predict": 8}


def main() -> None:
    client = ollama.Client(host=URL)
    use("models")
    client.list()
    client.show(MODEL)
    client.ps()
    use("chat")
    client.chat(model=MODEL, messages=CHAT, options=FEW)
    options = {
        **FEW, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 7, "stop": ["\n\n"], "num_ctx": 512,
        "repeat_penalty": 1.1, "min_p": 0.05,
    }  # fmt: skip
    system = {"role": "system", "content": "You tell stories."}
    client.chat(model=f"{MODEL}:latest", messages=[system, *CHAT], options=options, keep_alive="5m")
    use("chat stream")
    for _ in client.chat(model=MODEL, messages=CHAT, stream=True, options=FEW):
        pass
    use("chat tools")
    client.chat(model=MODEL, messages=CHAT, tools=[TOOL], options=FEW)
    use("chat tools result")
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    called = [
        *CHAT,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Sunny", "tool_name": "get_weather"},
    ]
    client.chat(model=MODEL, messages=called, tools=[TOOL], options=FEW)
    use("chat json")
    client.chat(model=MODEL, messages=CHAT, format="json", options={"num_predict": 48})
    use("chat structured output")
    client.chat(model=MODEL, messages=CHAT, format=SCHEMA, options={"num_predict": 48})
    use("chat thinking")
    client.chat(model=MODEL, messages=CHAT, think=True, options=FEW)
    use("chat an image")
    picture = {"role": "user", "content": QUESTION, "images": [b"\x89PNG"]}
    client.chat(model=MODEL, messages=[picture], options=FEW)
    use("generate")
    client.generate(model=MODEL, prompt=QUESTION, options=FEW)
    client.generate(model=MODEL, prompt=QUESTION, system="You tell stories.", options=FEW)
    client.generate(model=MODEL, prompt=QUESTION, raw=True, options=FEW)
    use("generate stream")
    for _ in client.generate(model=MODEL, prompt=QUESTION, stream=True, options=FEW):
        pass
    use("generate insertion")
    client.generate(model=MODEL, prompt=QUESTION, suffix="The end", options=FEW)
    use("load a model")
    client.generate(model=MODEL, prompt="")
    use("embed")
    client.embed(model=MODEL, input=QUESTION)
    client.embed(model=MODEL, input=[QUESTION, "Once"])
    use("embeddings")
    client.embeddings(model=MODEL, prompt=QUESTION)
    use("chat async")
    asyncio.run(chat())


async def chat() -> None:
    await ollama.AsyncClient(host=URL).chat(model=MODEL, messages=CHAT, options=FEW)


main()
