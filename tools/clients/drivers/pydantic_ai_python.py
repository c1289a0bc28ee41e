import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    models = {
        "chat": OpenAIChatModel("demo", provider=provider),
        "responses": OpenAIResponsesModel("demo", provider=provider),
        "messages": AnthropicModel("demo", provider=AnthropicProvider(api_key="none", base_url=URL)),
    }
    few = {"max_tokens": 48}
    for name, model in models.items():
        use(name)
        await Agent(model, instructions="You tell stories.", model_settings=few).run(QUESTION)
        use(f"{name} stream")
        async with Agent(model, model_settings=few).run_stream(QUESTION) as streamed:
            await streamed.get_output()
        use(f"{name} tools")
        await Agent(model, tools=[get_weather], model_settings=few).run(QUESTION)
        for kind in (ToolOutput, NativeOutput, PromptedOutput):
            if kind is not NativeOutput or name != "messages":
                use(f"{name} structured output by {kind.__name__}")
                await Agent(model, output_type=kind(Answer), model_settings=few, retries=0).run(QUESTION)


asyncio.run(main())
