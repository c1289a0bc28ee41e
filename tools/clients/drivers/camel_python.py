import tiktoken
from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


class Words:
    """Counts tokens without tables from the network."""

    def encode(self, text: str, **_: object) -> list[str]:
        return text.split()


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city (str): The city's name.
    """
    return f"Sunny in {city}"


def main() -> None:
    tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _name: Words()

    def model(**more: object):  # type: ignore[no-untyped-def]
        return ModelFactory.create(
            model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL, model_type="demo", url=f"{URL}/v1",
            api_key="none", model_config_dict={"max_tokens": 48, **more}, max_retries=0,
        )  # fmt: skip

    use("chat")
    ChatAgent("You tell stories.", model=model()).step(QUESTION)
    use("chat stream")
    for _ in ChatAgent("You tell stories.", model=model(stream=True)).step(QUESTION):
        pass
    use("tools")
    ChatAgent("You tell stories.", model=model(), tools=[FunctionTool(get_weather)]).step(QUESTION)
    use("structured output")
    ChatAgent("You tell stories.", model=model()).step(QUESTION, response_format=Answer)


main()
