from autogen import ConversableAgent, LLMConfig
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    served = {
        "api_type": "openai", "model": "demo", "base_url": f"{URL}/v1", "api_key": "none", "max_tokens": 48,
        "max_retries": 0,
    }  # fmt: skip
    use("chat")
    teller = ConversableAgent("teller", llm_config=LLMConfig(served), human_input_mode="NEVER")
    teller.generate_reply([{"role": "user", "content": QUESTION}])
    use("chat stream")
    ConversableAgent("teller", llm_config=LLMConfig({**served, "stream": True})).generate_reply(
        [{"role": "user", "content": QUESTION}]
    )
    use("tools")
    user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
    teller.register_for_llm(description="The weather in a city")(get_weather)
    user.register_for_execution()(get_weather)
    user.initiate_chat(teller, message=QUESTION, max_turns=2)
    use("structured output")
    formed = LLMConfig({**served, "response_format": Answer})
    ConversableAgent("teller", llm_config=formed).generate_reply([{"role": "user", "content": QUESTION}])


main()
