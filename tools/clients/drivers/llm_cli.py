import os
import subprocess
import sys
import tempfile
from pathlib import Path

from using import QUESTION, URL, use

MODELS = f"""\
- model_id: demo
  model_name: demo
  api_base: "{URL}/v1"
  supports_schema: true
  supports_tools: true
- model_id: demo-completion
  model_name: demo
  api_base: "{URL}/v1"
  completion: true
"""
FUNCTION = 'def get_weather(city: str) -> str:\n    "The weather in a city"\n    return "Sunny"\n'


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "extra-openai-models.yaml").write_text(MODELS)
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}

        def llm(*arguments: str) -> None:
            command = [sys.executable, "-m", "llm", *arguments]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)

        few = ("-o", "max_tokens", "8")
        use("chat stream")
        llm("-m", "demo", QUESTION, *few)
        use("chat")
        llm(
            "-m", "demo", "--no-stream", "-s", "You tell stories.", QUESTION, *few, "-o", "temperature", "0.7"
        )
        use("chat in turns")
        llm("-m", "demo", "--no-stream", "-c", "Go on.", *few)
        use("structured output")
        llm("-m", "demo", "--no-stream", "--schema", "answer str", QUESTION, "-o", "max_tokens", "48")
        use("tools")
        llm("-m", "demo", "--no-stream", "--functions", FUNCTION, QUESTION, *few)
        use("completions")
        llm("-m", "demo-completion", "--no-stream", QUESTION, *few)


main()
