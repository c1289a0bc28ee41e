from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from pydantic import BaseModel
from using import QUESTION, SCHEMA, URL, use

CHAT = [ChatMessage.from_system("You tell stories."), ChatMessage.from_user(QUESTION)]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Answer(BaseModel):
    answer: str


def main() -> None:
    served = {
        "model": "demo",
        "api_base_url": f"{URL}/v1",
        "api_key": Secret.from_token("none"),
        "max_retries": 0,
    }
    few = {"max_completion_tokens": 48}
    tool = Tool("get_weather", "The weather in a city", CITY, function=str)
    use("chat")
    OpenAIChatGenerator(**served, generation_kwargs=few).run(CHAT)
    use("chat stream")
    OpenAIChatGenerator(**served, generation_kwargs=few, streaming_callback=lambda _: None).run(CHAT)
    use("tools")
    OpenAIChatGenerator(**served, generation_kwargs=few, tools=[tool]).run(CHAT)
    use("strict tools")
    OpenAIChatGenerator(**served, generation_kwargs=few, tools=[tool], tools_strict=True).run(CHAT)
    use("structured output")
    OpenAIChatGenerator(**served, generation_kwargs={**few, "response_format": Answer}).run(CHAT)
    use("structured output by a schema")
    form = {"type": "json_schema", "json_schema": {"name": "Answer", "strict": True, "schema": SCHEMA}}
    OpenAIChatGenerator(**served, generation_kwargs={**few, "response_format": form}).run(CHAT)
    use("responses")
    OpenAIResponsesChatGenerator(**served, generation_kwargs={"max_output_tokens": 16}).run(CHAT)
    use("embeddings")
    OpenAITextEmbedder(**served).run(QUESTION)


main()
