import os

from pydantic import BaseModel
from using import QUESTION, URL, use

os.environ.update({"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{URL}/v1"})

from mirascope import llm


class Answer(BaseModel):
    answer: str


@llm.tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    for name in ("completions", "responses"):
        model = llm.Model(f"openai/demo:{name}", max_tokens=48)
        use(f"{name} chat")
        model.call(QUESTION)
        use(f"{name} stream")
        model.stream(QUESTION).finish()
        use(f"{name} tools")
        answer = model.call(QUESTION, tools=[get_weather])
        answer.resume(answer.execute_tools())
        use(f"{name} structured output")
        model.call(QUESTION, format=Answer)


main()
