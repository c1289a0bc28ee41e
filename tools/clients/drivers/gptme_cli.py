import os
import subprocess
import sys
import tempfile
from pathlib import Path

from using import QUESTION, URL, use


def main() -> None:
    environment = {
        **os.environ, "OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "none", "GPTME_CHECK": "false",
        "HOME": tempfile.mkdtemp(),
    }  # fmt: skip
    program = Path(sys.executable).with_name("gptme")
    for name, more in (("chat stream", ()), ("chat", ("--no-stream",)), ("tools", ("--tool-format", "tool"))):
        use(name)
        command = [program, "--non-interactive", "--model", "local/demo", "--tools", "read", *more, QUESTION]
        subprocess.run(
            command, env=environment, cwd=tempfile.mkdtemp(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            check=False, timeout=200,
        )  # fmt: skip


main()
