import anthropic
from using import QUESTION, TOOL, URL, use

MODEL = "demo"
CHAT = [{"role": "user", "content": QUESTION}]
_FUNCTION = TOOL["function"]
TOOLS = [
    {
        "name": _FUNCTION["name"],
        "description": _FUNCTION["description"],
        "input_schema": _FUNCTION["parameters"],
    }
]


def main() -> None:
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    use("messages")
    client.messages.create(model=MODEL, max_tokens=8, messages=CHAT)
    client.messages.create(
        model=MODEL, max_tokens=8, messages=CHAT, system="You tell stories.", stop_sequences=["\n\n"],
        metadata={"user_id": "somebody"}, service_tier="auto",
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 20},  # which this version has no names for
    )  # fmt: skip
    use("messages in blocks")
    block = {"type": "text", "text": "You tell stories.", "cache_control": {"type": "ephemeral"}}
    said = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    client.messages.create(model=MODEL, max_tokens=8, messages=said, system=[block])
    use("messages in turns")
    turns = [*CHAT, {"role": "assistant", "content": "Once."}, {"role": "user", "content": "Go on."}]
    client.messages.create(model=MODEL, max_tokens=8, messages=turns)
    use("messages begun answer")
    client.messages.create(
        model=MODEL, max_tokens=8, messages=[*CHAT, {"role": "assistant", "content": "Once upon"}]
    )
    use("messages stream")
    with client.messages.stream(model=MODEL, max_tokens=8, messages=CHAT) as stream:
        stream.get_final_message()
    for _ in client.messages.create(model=MODEL, max_tokens=8, messages=CHAT, stream=True):
        pass
    use("messages tools")
    client.messages.create(
        model=MODEL, max_tokens=8, messages=CHAT, tools=TOOLS, tool_choice={"type": "auto"}
    )
    use("messages tools result")
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny"}
    called = [*CHAT, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    client.messages.create(model=MODEL, max_tokens=8, messages=called, tools=TOOLS)
    use("messages thinking")
    client.messages.create(
        model=MODEL, max_tokens=2048, messages=CHAT, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    use("messages an image")
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    picture = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    client.messages.create(model=MODEL, max_tokens=8, messages=picture)
    use("count tokens")
    client.messages.count_tokens(model=MODEL, messages=CHAT, system="You tell stories.")
    client.close()


main()
