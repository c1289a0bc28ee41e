"""The clients, each in a folder of its own, as what they need differs; fetched from PyPI and npm by their usual
programs."""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.clients.catalogue import Client

DRIVERS = Path(__file__).with_name("drivers")


def install(folder: Path, client: Client) -> None:
    """Into `folder`; what is there already stays. Raises CalledProcessError, after pip or npm said why."""
    folder.mkdir(parents=True, exist_ok=True)
    (_install_node if client.node else _install_python)(folder, client)
    for driver in DRIVERS.iterdir():
        if driver.name.partition(".")[0] in ("using", client.driver.partition(".")[0]):
            shutil.copy(driver, folder)  # modules of Node are looked for beside the script


def command(folder: Path, client: Client) -> list[str | Path]:
    """Returns the command that runs the client's driver."""
    return ["node" if client.node else folder / "python" / "bin" / "python", folder / client.driver]


def _install_python(folder: Path, client: Client) -> None:
    python = folder / "python"
    if not python.is_dir():
        subprocess.run([sys.executable, "-m", "venv", python], check=True)
    pip: list[str | Path] = [
        python / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
    ]  # fmt: skip
    if client.bare:
        subprocess.run([*pip, *client.more], check=True)
        subprocess.run([*pip, "--no-deps", client.wanted], check=True)
    else:
        subprocess.run([*pip, client.wanted, *client.more], check=True)


def _install_node(folder: Path, client: Client) -> None:
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--loglevel=error"]
    subprocess.run([*npm, client.wanted, *client.more], cwd=folder, check=True)
