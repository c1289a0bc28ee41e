import os

os.environ.update(
    {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
)

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


@tool("get_weather")
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    llm = LLM(model="openai/demo", base_url=f"{URL}/v1", api_key="none", max_tokens=48)
    use("chat")
    llm.call([{"role": "user", "content": QUESTION}])
    use("chat stream")
    LLM(model="openai/demo", base_url=f"{URL}/v1", api_key="none", max_tokens=8, stream=True).call(QUESTION)
    told = {
        "role": "Teller",
        "goal": "Tell stories",
        "backstory": "You tell stories.",
        "llm": llm,
        "max_iter": 2,
    }
    use("an agent with tools")
    agent = Agent(**told, tools=[get_weather])
    Crew(agents=[agent], tasks=[Task(description=QUESTION, expected_output="A story", agent=agent)]).kickoff()
    use("structured output")
    agent = Agent(**told)
    task = Task(description=QUESTION, expected_output="A story", agent=agent, output_pydantic=Answer)
    Crew(agents=[agent], tasks=[task]).kickoff()


main()
