from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from using import QUESTION, URL, use

CHAT = [ChatMessage(role="system", content="You tell stories."), ChatMessage(role="user", content=QUESTION)]


class Answer(BaseModel):
    """The answer's schema."""

    answer: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    served = {"model": "demo", "api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    chat = OpenAILike(**served, is_chat_model=True, is_function_calling_model=True, max_tokens=48)
    local = Ollama(model="demo", base_url=URL, additional_kwargs={"num_predict": 48}, context_window=1024)
    tool = FunctionTool.from_defaults(get_weather)
    for name, llm in (("", chat), ("ollama ", local)):
        use(f"{name}chat")
        llm.chat(CHAT)
        use(f"{name}chat stream")
        for _ in llm.stream_chat(CHAT):
            pass
        use(f"{name}tools")
        llm.chat_with_tools([tool], user_msg=QUESTION)
        use(f"{name}structured output")
        llm.structured_predict(Answer, PromptTemplate("{question}"), question=QUESTION)
    use("completions")
    OpenAILike(**served, is_chat_model=False, max_tokens=8).complete(QUESTION)
    use("embeddings")
    embedding = OpenAILikeEmbedding(model_name="demo", api_base=f"{URL}/v1", api_key="none", max_retries=0)
    embedding.get_text_embedding_batch([QUESTION, "Once"])


main()
