from typing import Literal

import ollama
import openai
import outlines
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


def main() -> None:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    plain = outlines.from_openai(client, "demo")
    use("chat")
    plain(QUESTION, max_tokens=8)
    use("structured output")
    plain(QUESTION, Answer, max_tokens=48)
    use("chat stream")
    list(plain.stream(QUESTION, max_tokens=8))
    served = outlines.from_vllm(client, "demo")
    use("vllm structured output")
    served(QUESTION, Answer, max_tokens=48)
    use("vllm choice")
    served(QUESTION, Literal["once", "twice"], max_tokens=8)
    use("vllm regex")
    served(QUESTION, outlines.regex("[a-z]{1,8}"), max_tokens=8)
    use("vllm grammar")
    served(QUESTION, outlines.cfg('start: "once" | "twice"'), max_tokens=8)
    use("sglang structured output")
    outlines.from_sglang(client, "demo")(QUESTION, Answer, max_tokens=48)
    use("sglang regex")
    outlines.from_sglang(client, "demo")(QUESTION, outlines.regex("[a-z]{1,8}"), max_tokens=8)
    use("ollama structured output")
    outlines.from_ollama(ollama.Client(host=URL), "demo")(QUESTION, Answer, options={"num_predict": 48})


main()
