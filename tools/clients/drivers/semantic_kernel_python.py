import asyncio
from typing import Annotated

from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextEmbedding,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


class Weather:
    @kernel_function(description="The weather in a city")
    def get_weather(self, city: Annotated[str, "The city's name"]) -> str:
        return f"Sunny in {city}"


def history() -> ChatHistory:
    history = ChatHistory(system_message="You tell stories.")
    history.add_user_message(QUESTION)
    return history


async def main() -> None:
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    chat = OpenAIChatCompletion(ai_model_id="demo", async_client=client)
    few = OpenAIChatPromptExecutionSettings(max_completion_tokens=48)
    use("chat")
    await chat.get_chat_message_content(history(), few)
    use("chat stream")
    async for _ in chat.get_streaming_chat_message_content(history(), few):
        pass
    use("structured output")
    formed = OpenAIChatPromptExecutionSettings(max_completion_tokens=48, response_format=Answer)
    await chat.get_chat_message_content(history(), formed)
    use("tools")
    kernel = Kernel()
    kernel.add_plugin(Weather(), "weather")
    auto = FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=1)
    tooled = OpenAIChatPromptExecutionSettings(max_completion_tokens=48, function_choice_behavior=auto)
    await chat.get_chat_message_content(history(), tooled, kernel=kernel)
    use("embeddings")
    await OpenAITextEmbedding(ai_model_id="demo", async_client=client).generate_embeddings([QUESTION, "Once"])
    await client.close()


asyncio.run(main())
