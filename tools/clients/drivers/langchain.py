from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from using import QUESTION, URL, use

MODEL = "demo"
BASE = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
CHAT = [SystemMessage("You tell stories."), HumanMessage(QUESTION)]


class Answer(BaseModel):
    """The answer's schema."""

    answer: str = Field(description="The answer")


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    chat = ChatOpenAI(**BASE, max_tokens=8, temperature=0.7)
    use("chat")
    chat.invoke(CHAT)
    use("chat stream")
    for _ in chat.stream(CHAT):
        pass
    use("chat stop")
    chat.invoke(CHAT, stop=["\n\n"])
    use("tools")
    with_tools = chat.bind_tools([get_weather])
    with_tools.invoke(CHAT)
    use("tools result")
    call = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_1"}
    with_tools.invoke([*CHAT, AIMessage("", tool_calls=[call]), ToolMessage("Sunny", tool_call_id="call_1")])
    roomy = ChatOpenAI(**BASE, max_tokens=48)
    use("structured output")
    roomy.with_structured_output(Answer).invoke(CHAT)
    use("structured output by json mode")
    roomy.with_structured_output(Answer, method="json_mode").invoke(CHAT)
    use("structured output by a tool")
    roomy.with_structured_output(Answer, method="function_calling", include_raw=True).invoke(CHAT)
    use("responses")
    ChatOpenAI(**BASE, max_tokens=16, use_responses_api=True).invoke(CHAT)
    use("completions")
    completions = OpenAI(**BASE, max_tokens=8)
    completions.invoke(QUESTION)
    use("completions stream")
    for _ in completions.stream(QUESTION):
        pass
    use("embeddings")
    embeddings = OpenAIEmbeddings(**BASE, check_embedding_ctx_length=False)
    embeddings.embed_query(QUESTION)
    embeddings.embed_documents([QUESTION, "Once"])


main()
