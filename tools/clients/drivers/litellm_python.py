import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks for prices on the network

import litellm
from using import QUESTION, SCHEMA, TOOL, URL, use

CHAT = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": QUESTION}]
OPENAI = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
OTHER = {"api_base": URL, "api_key": "none", "num_retries": 0}


def main() -> None:
    litellm.telemetry = False
    use("chat")
    litellm.completion(model="openai/demo", messages=CHAT, max_tokens=8, temperature=0.7, **OPENAI)
    use("chat stream")
    for _ in litellm.completion(
        model="openai/demo", messages=CHAT, max_tokens=8, stream=True, stream_options={"include_usage": True},
        **OPENAI,
    ):  # fmt: skip
        pass
    use("tools")
    litellm.completion(model="openai/demo", messages=CHAT, max_tokens=8, tools=[TOOL], **OPENAI)
    use("structured output")
    schema = {"type": "json_schema", "json_schema": {"name": "Answer", "schema": SCHEMA, "strict": True}}
    litellm.completion(model="openai/demo", messages=CHAT, max_tokens=48, response_format=schema, **OPENAI)
    use("completions")
    litellm.text_completion(model="text-completion-openai/demo", prompt=QUESTION, max_tokens=8, **OPENAI)
    use("embeddings")
    litellm.embedding(model="openai/demo", input=[QUESTION, "Once"], **OPENAI)
    use("responses")
    litellm.responses(model="openai/demo", input=QUESTION, max_output_tokens=16, **OPENAI)
    use("messages")
    litellm.completion(model="anthropic/demo", messages=CHAT, max_tokens=8, **OTHER)
    use("messages stream")
    for _ in litellm.completion(model="anthropic/demo", messages=CHAT, max_tokens=8, stream=True, **OTHER):
        pass
    use("ollama chat")
    litellm.completion(model="ollama_chat/demo", messages=CHAT, max_tokens=8, **OTHER)
    use("ollama chat stream")
    for _ in litellm.completion(model="ollama_chat/demo", messages=CHAT, max_tokens=8, stream=True, **OTHER):
        pass
    use("ollama generate")
    litellm.completion(model="ollama/demo", messages=CHAT, max_tokens=8, **OTHER)
    use("ollama embed")
    litellm.embedding(model="ollama/demo", input=[QUESTION], **OTHER)


main()
