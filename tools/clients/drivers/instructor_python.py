import anthropic
import instructor
import openai
from pydantic import BaseModel
from using import QUESTION, URL, use

CHAT = [{"role": "user", "content": QUESTION}]


class Answer(BaseModel):
    answer: str


def main() -> None:
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    fields = {"model": "demo", "messages": CHAT, "max_tokens": 48, "response_model": Answer, "max_retries": 1}
    for mode in (
        instructor.Mode.TOOLS,
        instructor.Mode.JSON,
        instructor.Mode.JSON_SCHEMA,
        instructor.Mode.MD_JSON,
    ):
        use(f"structured output by {mode.value}")
        instructor.from_openai(plain, mode=mode).chat.completions.create(**fields)
    use("structured output stream")
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    for _ in client.chat.completions.create_partial(**fields):
        pass
    use("structured output messages")
    claude = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    instructor.from_anthropic(claude).messages.create(**fields)


main()
