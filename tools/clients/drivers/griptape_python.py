from griptape.configs import Defaults
from griptape.configs.drivers import DriversConfig
from griptape.drivers.embedding.openai import OpenAiEmbeddingDriver
from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.structures import Agent
from griptape.tools import CalculatorTool
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


def main() -> None:
    served = {"model": "demo", "base_url": f"{URL}/v1", "api_key": "none"}
    chat = {**served, "max_tokens": 48, "max_attempts": 1}
    embedding = OpenAiEmbeddingDriver(**served, max_attempts=1)
    Defaults.drivers_config = DriversConfig(
        prompt_driver=OpenAiChatPromptDriver(**chat), embedding_driver=embedding
    )
    use("chat")
    Agent().run(QUESTION)
    use("chat stream")
    Agent(prompt_driver=OpenAiChatPromptDriver(**chat, stream=True), stream=True).run(QUESTION)
    use("structured output")
    Agent(output_schema=Answer).run(QUESTION)
    use("tools")
    Agent(tools=[CalculatorTool()], max_subtasks=1).run(QUESTION)


main()
