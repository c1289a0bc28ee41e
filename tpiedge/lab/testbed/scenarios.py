"""The descriptions that come along (configs/testbeds), and how people name one: `pair`, or a path."""

import re
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Description, check_name
from tpiedge.lab.testbed.reading import parse_description

# Beside the package in a checkout of the sources, inside of it where it was installed from a wheel.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "testbeds" for up in (2, 3))
_MAX_BYTES = 1 << 20
_UNFIT = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True)
class Scenario:
    """`name` is that of the testbed that it makes; `text` is its file's, which `description` says."""

    name: str
    text: str
    description: Description


def shipped_scenarios() -> dict[str, Path]:
    """Name -> file, in the order of names. Empty where the installation lacks the files."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def load_scenario(given: str, name: str | None = None) -> Scenario:
    """A path where `given` has a slash or ends in .toml, otherwise one that comes along. Raises UserError."""
    path = _path(given)
    text = _text(path)
    return Scenario(
        check_name(name if name is not None else _name_of(path), "a testbed"),
        text,
        parse_description(text, str(path)),
    )


def _path(given: str) -> Path:
    if "/" in given or given.endswith(".toml"):
        return Path(given)
    shipped = shipped_scenarios()
    if given not in shipped:
        raise UserError(
            f"there is no testbed {given[:40]!r}: give a file (./NAME.toml) or one of {', '.join(shipped)}"
        )
    return shipped[given]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a zero byte in a path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the testbed's file {path}: {reason}") from None
    if len(content) > _MAX_BYTES:
        raise UserError(f"the testbed's file {path} is larger than 1 MiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UserError(f"the testbed's file {path} is not text in UTF-8") from None


def _name_of(path: Path) -> str:
    """`My Home.toml` -> my-home."""
    return _UNFIT.sub("-", path.stem.lower())[:15].strip("-_")
