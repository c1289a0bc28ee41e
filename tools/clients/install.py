"""The clients, in a folder of their own: some 900 MB, fetched from PyPI and npm by their usual programs."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CLIENTS", "Client", "command", "install"]

DRIVERS = Path(__file__).with_name("drivers")


@dataclass(frozen=True)
class Client:
    """A client's package, the version that is recorded, and the driver that uses it."""

    package: str
    version: str
    driver: str
    #: What is installed of all that it needs, where that is gigabytes.
    only: tuple[str, ...] = ()

    @property
    def node(self) -> bool:
        return self.driver.endswith(".mjs")


#: By the name of the file that holds what it sends.
CLIENTS = {
    "openai-python": Client("openai", "3.57.0", "openai_python.py"),
    "anthropic-python": Client("anthropic", "2.14.0", "anthropic_python.py"),
    "ollama-python": Client("ollama", "0.6.3", "ollama_python.py"),
    "langchain": Client("langchain-openai", "1.7.4", "langchain.py"),
    "litellm": Client("litellm", "1.110.2", "litellm_python.py"),
    "llm": Client("llm", "0.36", "llm_cli.py"),
    "open-webui": Client(
        "open-webui",
        "0.12.4",
        "web_ui.py",
        (
            "aiocache",
            "aiofiles",
            "aiohttp",
            "beautifulsoup4",
            "cryptography",
            "fastapi",
            "markdown",
            "PyJWT",
            "python-engineio",
            "python-mimeparse",
            "python-multipart",
            "sqlalchemy[asyncio]",
        ),
    ),
    "openai-node": Client("openai", "6.49.0", "openai_node.mjs"),
    "ollama-node": Client("ollama", "0.6.4", "ollama_node.mjs"),
    "continue": Client("@continuedev/openai-adapters", "1.37.0", "continue.mjs"),
}


def install(folder: Path) -> None:
    """Both kinds; what is there already stays. Raises CalledProcessError, after pip or npm said why."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    if not python.is_dir():
        subprocess.run([sys.executable, "-m", "venv", python], check=True)
    clients = [one for one in CLIENTS.values() if not one.node]
    wanted = [f"{one.package}=={one.version}" for one in clients if not one.only]
    wanted += [package for one in clients for package in one.only]
    pip: list[str | Path] = [
        python / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
    ]  # fmt: skip
    subprocess.run([*pip, *wanted], check=True)
    alone = [f"{one.package}=={one.version}" for one in clients if one.only]
    subprocess.run([*pip, "--no-deps", *alone], check=True)
    node = folder / "node"
    node.mkdir(exist_ok=True)
    wanted = [f"{one.package}@{one.version}" for one in CLIENTS.values() if one.node]
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--loglevel=error"]
    subprocess.run([*npm, *wanted], cwd=node, check=True)
    for driver in DRIVERS.iterdir():
        if driver.is_file():  # modules of Node are looked for beside the script
            shutil.copy(driver, node if driver.suffix == ".mjs" else folder)


def command(folder: Path, client: Client) -> list[str | Path]:
    """What runs its driver."""
    if client.node:
        return ["node", folder / "node" / client.driver]
    return [folder / "python" / "bin" / "python", folder / client.driver]
