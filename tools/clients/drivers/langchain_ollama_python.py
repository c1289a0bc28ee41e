from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
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
    use("the model is looked for")
    chat = ChatOllama(model="demo", base_url=URL, num_predict=8, validate_model_on_init=True)
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
    roomy = ChatOllama(model="demo", base_url=URL, num_predict=48)
    for method in ("json_schema", "json_mode", "function_calling"):
        use(f"structured output by {method}")
        roomy.with_structured_output(Answer, method=method, include_raw=True).invoke(CHAT)
    use("thoughts")
    ChatOllama(model="demo", base_url=URL, num_predict=8, reasoning=True).invoke(CHAT)
    use("generate")
    OllamaLLM(model="demo", base_url=URL, num_predict=8).invoke(QUESTION)
    use("embed")
    OllamaEmbeddings(model="demo", base_url=URL).embed_documents([QUESTION, "Once"])


main()
