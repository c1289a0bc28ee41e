import os
import subprocess
import sys
import tempfile

from using import QUESTION, URL, use


def main() -> None:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OLLAMA_API_BASE": URL}
    openai = ("--model", "openai/demo", "--openai-api-base", f"{URL}/v1", "--openai-api-key", "none")
    ollama = ("--model", "ollama_chat/demo")
    quiet = (
        "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-analytics",
        "--no-show-release-notes", "--map-tokens", "0",
    )  # fmt: skip
    for name, more in (
        ("chat stream", openai),
        ("chat", (*openai, "--no-stream")),
        ("ask", (*openai, "--chat-mode", "ask")),
        ("ollama chat stream", ollama),
    ):
        use(name)
        command = [sys.executable, "-m", "aider", *quiet, *more, "--message", QUESTION]
        subprocess.run(
            command, env=environment, cwd=tempfile.mkdtemp(), check=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, timeout=200,
        )  # fmt: skip


main()
