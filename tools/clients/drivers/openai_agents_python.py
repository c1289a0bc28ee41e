import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    few = ModelSettings(max_tokens=48)
    for name, kind in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        told = {
            "name": "teller", "instructions": "You tell stories.", "model": kind("demo", client),
            "model_settings": few,
        }  # fmt: skip
        use(name)
        await Runner.run(Agent(**told), QUESTION)
        use(f"{name} stream")
        streamed = Runner.run_streamed(Agent(**told), QUESTION)
        async for _ in streamed.stream_events():
            pass
        use(f"{name} tools")
        await Runner.run(Agent(**told, tools=[get_weather]), QUESTION)
        use(f"{name} structured output")
        await Runner.run(Agent(**told, output_type=Answer), QUESTION)
        use(f"{name} hand over")
        other = Agent(name="other", instructions="You answer.", model=told["model"], model_settings=few)
        await Runner.run(Agent(**told, handoffs=[other]), QUESTION)
    await client.close()


asyncio.run(main())
