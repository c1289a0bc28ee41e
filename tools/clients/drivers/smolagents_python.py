from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from using import QUESTION, SCHEMA, URL, use


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The city's name.
    """
    return f"Sunny in {city}"


def main() -> None:
    model = OpenAIServerModel("demo", api_base=f"{URL}/v1", api_key="none", max_tokens=48)
    chat = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    use("chat")
    model(chat)
    use("chat stop")
    model(chat, stop_sequences=["Observation:", "Calling tools:"])
    use("chat stream")
    for _ in model.generate_stream(chat):
        pass
    use("structured output")
    form = {"type": "json_schema", "json_schema": {"name": "Answer", "strict": True, "schema": SCHEMA}}
    model(chat, response_format=form)
    use("an agent with tools")
    ToolCallingAgent([get_weather], model, max_steps=1, verbosity_level=0).run(QUESTION)


main()
