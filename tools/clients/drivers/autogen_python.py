import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


async def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


async def main() -> None:
    what = ModelInfo(
        vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
    )
    client = OpenAIChatCompletionClient(
        model="demo", base_url=f"{URL}/v1", api_key="none", model_info=what, max_tokens=48, max_retries=0
    )
    chat = [UserMessage(content=QUESTION, source="user")]
    use("chat")
    await client.create(chat)
    use("chat stream")
    async for _ in client.create_stream(chat):
        pass
    use("structured output")
    await client.create(chat, json_output=Answer)
    use("json mode")
    await client.create(chat, json_output=True)
    use("an agent with tools")
    await AssistantAgent("teller", client, tools=[get_weather], reflect_on_tool_use=True).run(task=QUESTION)
    await client.close()


asyncio.run(main())
