import os

os.environ["AGNO_TELEMETRY"] = "false"

from agno.agent import Agent
from agno.models.openai import OpenAIResponses
from agno.models.openai.like import OpenAILike
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    served = {"id": "demo", "base_url": f"{URL}/v1", "api_key": "none"}
    chat = OpenAILike(**served, max_tokens=48)
    told = {"instructions": "You tell stories.", "telemetry": False}
    use("chat")
    Agent(model=chat, **told).run(QUESTION)
    use("chat stream")
    for _ in Agent(model=chat, **told).run(QUESTION, stream=True):
        pass
    use("tools")
    Agent(model=chat, tools=[get_weather], **told).run(QUESTION)
    use("structured output")
    Agent(model=chat, output_schema=Answer, **told).run(QUESTION)
    use("json mode")
    Agent(model=chat, output_schema=Answer, use_json_mode=True, **told).run(QUESTION)
    use("responses")
    Agent(model=OpenAIResponses(**served, max_output_tokens=16), **told).run(QUESTION)


main()
