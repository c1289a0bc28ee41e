from pydantic import BaseModel
from strands import Agent, tool
from strands.models.ollama import OllamaModel
from strands.models.openai import OpenAIModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    chat = OpenAIModel(
        client_args={"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}, model_id="demo",
        params={"max_tokens": 48},
    )  # fmt: skip
    local = OllamaModel(URL, model_id="demo", max_tokens=48)
    for name, model in (("", chat), ("ollama ", local)):
        told = {"model": model, "system_prompt": "You tell stories.", "callback_handler": None}
        use(f"{name}chat")
        Agent(**told)(QUESTION)
        use(f"{name}tools")
        Agent(**told, tools=[get_weather])(QUESTION)
        use(f"{name}structured output")
        Agent(**told)(QUESTION, structured_output_model=Answer)


main()
