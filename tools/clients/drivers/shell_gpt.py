import os
import subprocess
import sys
from pathlib import Path

from using import QUESTION, URL, use


def main() -> None:
    environment = {
        **os.environ, "OPENAI_API_KEY": "none", "API_BASE_URL": f"{URL}/v1", "DEFAULT_MODEL": "demo",
        "USE_LITELLM": "false", "OPENAI_USE_FUNCTIONS": "false", "PRETTIFY_MARKDOWN": "false",
    }  # fmt: skip
    program = Path(sys.executable).with_name("sgpt")

    def sgpt(*arguments: str) -> None:
        command = [program, "--no-cache", *arguments]
        subprocess.run(
            command,
            env=environment,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )

    use("chat stream")
    sgpt(QUESTION)
    use("a chat in turns")
    sgpt("--chat", "tale", QUESTION)
    sgpt("--chat", "tale", "Go on.")
    use("code")
    sgpt("--code", QUESTION)


main()
