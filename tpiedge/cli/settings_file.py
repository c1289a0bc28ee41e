"""A settings file: TOML with one table per verb, every value with its line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_config_path

from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line
from tpiedge.toml_text import parse_toml

_MAX_BYTES = 1 << 20
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


@dataclass(frozen=True)
class SettingsFile:
    """`tables`: "run" or "bench.decode" -> key -> value. Keys before the first table are those of table ""."""

    path: Path
    tables: Mapping[str, Mapping[str, object]]
    lines: Mapping[str, int]

    def place(self, table: str, key: str = "") -> str:
        """'/etc/tpiedge.toml:3', without the line where it is not known."""
        line = self.lines.get(f"{table}.{key}".strip("."))
        return f"{self.path}:{line}" if line else str(self.path)


def find_settings(given: Path | None, environment: Mapping[str, str]) -> SettingsFile | None:
    """The file of --config, of TPIEDGE_CONFIG or the user's own; None without one. Raises UserError.

    The current folder is never searched: a folder that came from elsewhere must not change what a command does.
    """
    if given is not None:
        return read_settings(given)
    if named := environment.get("TPIEDGE_CONFIG"):
        try:
            return read_settings(Path(named))
        except UserError as error:
            raise UserError(f"TPIEDGE_CONFIG: {error}") from None
    own = user_config_path("tpiedge") / "config.toml"
    try:
        own.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # settings in a folder that is closed to this user are not passed over
    return read_settings(own)


def read_settings(path: Path) -> SettingsFile:
    """Raises UserError where it cannot be read or is no TOML."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UserError(f"the settings file {path} is larger than 1 MiB")
        return parse_settings(path, content.decode())
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}; name another one") from None
    except UnicodeDecodeError:
        raise UserError(f"the settings file {path} is not text in UTF-8") from None


def parse_settings(path: Path, text: str) -> SettingsFile:
    """Raises UserError where `text` is no TOML."""
    where = f"the settings file {path}"
    tables: dict[str, dict[str, object]] = {}
    try:
        for table, key, value in _flatten("", parse_toml(text, where)):
            tables.setdefault(table, {}).update({key: value} if key else {})
    except RecursionError as error:  # tables within tables
        raise UserError(f"{where} is not valid TOML: {sanitised_line(error)}") from None
    return SettingsFile(path, tables, dict(_lines(text)))


def _flatten(table: str, content: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """(table, key, value); an empty table has one row without a key."""
    if table and not content:
        yield table, "", None
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flatten(f"{table}.{key}".strip("."), value)
        else:
            yield table, key, value


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Where tables and keys stand, as far as one can tell line by line: tomllib does not say."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _dotted(header[1])
            yield table, number
        elif key := _KEY.match(line):
            yield f"{table}.{_dotted(key[1])}".strip("."), number


def _dotted(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
