import asyncio
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, GenerateContentConfig, Part
from using import QUESTION, URL, use


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


async def ask(agent: LlmAgent) -> None:
    runner = InMemoryRunner(agent, app_name="tales")
    session = await runner.session_service.create_session(app_name="tales", user_id="somebody")
    told = Content(role="user", parts=[Part(text=QUESTION)])
    async for _ in runner.run_async(user_id="somebody", session_id=session.id, new_message=told):
        pass
    await runner.close()


async def main() -> None:
    models = {
        "chat": LiteLlm("openai/demo", api_base=f"{URL}/v1", api_key="none"),
        "ollama": LiteLlm("ollama_chat/demo", api_base=URL),
    }
    for name, model in models.items():
        told = {
            "name": "teller", "model": model, "instruction": "You tell stories.",
            "generate_content_config": GenerateContentConfig(max_output_tokens=48),
        }  # fmt: skip
        use(name)
        await ask(LlmAgent(**told))
        use(f"{name} tools")
        await ask(LlmAgent(**told, tools=[get_weather]))


asyncio.run(main())
