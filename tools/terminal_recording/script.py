"""The script of a recording: what is typed, and what is waited for, as a TOML file says it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpiedge.errors import UserError

PROMPT = "$ "
"""What the shell writes before a command."""

_STEP_KEYS = {"type", "expect", "pause_s"}


@dataclass(frozen=True)
class Step:
    """One line that is typed. The step is over when the cursor's line reads `expect` up to the cursor, and then
    `pause_s` long nothing happens."""

    text: str
    expect: str
    pause_s: float


@dataclass(frozen=True)
class Script:
    """`before`: commands that run unseen before the recording begins."""

    before: tuple[str, ...]
    steps: tuple[Step, ...]


def load(path: Path) -> Script:
    """Reads the script in the TOML file `path`. Raises UserError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    unknown = content.keys() - {"before", "steps"}
    if unknown or not content.get("steps"):
        raise UserError(f"{path} needs steps and may have before, nothing else: [[steps]] begins a step")
    steps = [_step(table, f"step {place} of {path}") for place, table in enumerate(content["steps"], start=1)]
    return Script(tuple(content.get("before", ())), tuple(steps))


def _step(table: dict[str, Any], where: str) -> Step:
    unknown = table.keys() - _STEP_KEYS
    if unknown or not table.get("type"):
        raise UserError(f"{where} needs type and may have expect and pause_s, nothing else")
    return Step(table["type"], table.get("expect", PROMPT), table.get("pause_s", 1.0))
