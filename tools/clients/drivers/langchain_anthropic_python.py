from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from using import QUESTION, URL, use

CHAT = [SystemMessage("You tell stories."), HumanMessage(QUESTION)]


class Answer(BaseModel):
    answer: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    served = {"model": "demo", "base_url": URL, "api_key": "none", "max_retries": 0}
    chat = ChatAnthropic(**served, max_tokens=8)
    use("chat")
    chat.invoke(CHAT)
    use("chat stream")
    for _ in chat.stream(CHAT):
        pass
    use("tools")
    with_tools = chat.bind_tools([get_weather])
    with_tools.invoke(CHAT)
    use("tools result")
    call = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_1"}
    with_tools.invoke([*CHAT, AIMessage("", tool_calls=[call]), ToolMessage("Sunny", tool_call_id="call_1")])
    roomy = ChatAnthropic(**served, max_tokens=48)
    for method in ("function_calling", "json_schema"):
        use(f"structured output by {method}")
        roomy.with_structured_output(Answer, method=method, include_raw=True).invoke(CHAT)
    use("count tokens")
    chat.get_num_tokens_from_messages(CHAT)


main()
