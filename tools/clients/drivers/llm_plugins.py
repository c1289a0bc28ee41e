import os
import subprocess
import sys
import tempfile

from using import QUESTION, URL, use

FUNCTION = 'def get_weather(city: str) -> str:\n    "The weather in a city"\n    return "Sunny"\n'


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LLM_USER_PATH": folder, "OLLAMA_HOST": URL}

        def llm(*arguments: str) -> None:
            command = [sys.executable, "-m", "llm", *arguments]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)

        few = ("-o", "num_predict", "8")
        use("ollama models")
        llm("ollama", "models")
        use("ollama chat stream")
        llm("-m", "ollama/demo", QUESTION, *few)
        use("ollama chat")
        llm("-m", "ollama/demo", "--no-stream", "-s", "You tell stories.", QUESTION, *few)
        use("ollama structured output")
        llm("-m", "ollama/demo", "--no-stream", "--schema", "answer str", QUESTION, "-o", "num_predict", "48")
        use("ollama embed")
        llm("embed", "-m", "ollama/demo", "-c", QUESTION)


main()
