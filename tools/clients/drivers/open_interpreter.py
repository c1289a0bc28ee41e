import os

os.environ.update({"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_TELEMETRY": "true"})

from interpreter import interpreter
from using import QUESTION, URL, use


def main() -> None:
    interpreter.offline = True
    interpreter.llm.model = "openai/demo"
    interpreter.llm.api_base = f"{URL}/v1"
    interpreter.llm.api_key = "none"
    interpreter.llm.context_window, interpreter.llm.max_tokens = 4096, 48
    interpreter.llm.supports_vision = False
    use("chat stream")
    interpreter.llm.supports_functions = False
    interpreter.chat(QUESTION, display=False)


main()
