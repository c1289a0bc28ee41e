"""Reads an untrusted model's folder: regular files of bounded size, and typed, bounded fields of JSON.

A file's name must not contain a path. A link must lead to a file in the folder. In huggingface_hub's cache
(`models--*/snapshots/<revision>`), a link may also lead to the model's `blobs`.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

from tpiedge.errors import UserError
from tpiedge.pack.files import open_regular
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import format_bytes

T = TypeVar("T")

#: Files of a model except its weights, its folder of templates and its pooling.
TEXT_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
)
# Bounds the memory of parsing, up to 200 bytes for each value.
_MAX_COMMAS = 400_000


def has_file(folder: Path, name: str) -> bool:
    """Whether `folder` has an entry `name`; a broken link counts."""
    return os.path.lexists(folder / name)


def list_files(folder: Path, inner: str, suffix: str) -> list[str]:
    """Returns the sorted names in `folder` / `inner` with `suffix`. An unreadable folder has no names."""
    try:
        return sorted(name for name in os.listdir(folder / inner) if name.endswith(suffix))
    except OSError:
        return []


def open_file(folder: Path, name: str, inner: str = "") -> BinaryIO:
    """Opens a regular file in `folder` / `inner` without blocking. `inner` must be trusted. The result's `name` is its
    real path."""
    if not _is_plain(name):
        raise UserError(
            f"{folder}: {quote(name)} is not a plain file name; get the model from a source you trust"
        )
    place = folder / inner
    try:
        root = folder.resolve(strict=True)
        path = (root / inner / name).resolve(strict=True)
    except FileNotFoundError:
        raise UserError(f"{place} has no {name}: download the model again, all of its files") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links
        raise UserError(f"{place / name} cannot be read: {_reason(error)}") from None
    if path.parent != root / inner and not _in_cache_blobs(root, path):
        raise UserError(
            f"{place / name} links to a file outside of the model's folder: put the file itself there"
        )
    try:
        # O_NOFOLLOW: all links were followed and checked.
        return open(path, "rb", opener=lambda _path, _flags: open_regular(path, os.O_NOFOLLOW))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_reason(error)}") from None


def read_bytes(folder: Path, name: str, limit: int, inner: str = "") -> bytes:
    """Reads a whole file. Raises UserError, also for more than `limit` bytes."""
    path = folder / inner / name
    with open_file(folder, name, inner) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UserError(f"{path} has {format_bytes(size)}; at most {format_bytes(limit)} are accepted")
        try:
            return file.read(size)  # allocates `size` bytes at once
        except OSError as error:
            raise UserError(f"{path} cannot be read: {_reason(error)}") from None


def read_text(folder: Path, name: str, limit: int, inner: str = "") -> str:
    try:
        return read_bytes(folder, name, limit, inner).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{folder / inner / name} is not UTF-8 text (byte {error.start}); download it again"
        ) from None


def read_json(folder: Path, name: str, limit: int) -> Mapping[str, object]:
    return parse_json(read_bytes(folder, name, limit), str(folder / name))


def parse_json(data: bytes, where: str, *, unique_keys: bool = False) -> Mapping[str, object]:
    """Parses one JSON object. `where` begins error messages. `unique_keys` refuses repeated keys."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) != len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise UserError(f"{where}: {quote(twice)} occurs twice in one object; download the model again")
        return values

    if data.count(b",") > _MAX_COMMAS:
        raise UserError(f"{where} lists more than {_MAX_COMMAS} values: no model needs as many")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique if unique_keys else None)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply; download the model again") from None
    except ValueError as error:  # bad JSON, bad UTF-8, numbers of thousands of digits
        raise UserError(
            f"{where} is not valid JSON ({sanitised_line(error, 120)}); download it again"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{where} does not hold a JSON object; download it again")
    return value


def _is_plain(name: str) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "replace")) <= 255
        and name.isprintable()
        and not any(mark in name for mark in "/\\")
        and name not in (".", "..")
    )


def _in_cache_blobs(snapshot: Path, path: Path) -> bool:
    entry = snapshot.parent.parent
    is_snapshot = snapshot.parent.name == "snapshots" and entry.name.startswith("models--")
    return is_snapshot and path.parent == entry / "blobs"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or sanitised_line(error, 120)


@dataclass(frozen=True)
class ConfigFields:
    """Typed fields of `values`; `where` names the file in errors. Missing or null fields have the default. Methods
    raise UserError."""

    where: str
    values: Mapping[str, object]

    def raw(self, key: str) -> object:
        return self.values.get(key)

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise UserError(f"{self.where}: {key} {problem}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"is {quote(value)}, not a whole number from {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        return None if self.raw(key) is None else self.integer(key, low, high)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self._value(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"is {quote(value)}, not a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        return None if self.raw(key) is None else self.number(key, low, high)

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self._of(bool, key, default, "true or false")

    def text(self, key: str, default: str | None = None) -> str:
        return self._of(str, key, default, "a text")

    def choice(self, key: str, supported: Collection[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in supported:
            self.refuse(key, f"is {quote(value)}; supported are {', '.join(supported)}")
        return value

    def fields(self, key: str) -> "ConfigFields":
        """Returns the object under `key`, or an empty one if it is missing or null."""
        return ConfigFields(f"{self.where}, {key}", self._of(dict, key, {}, "an object"))

    def sequence(self, key: str, limit: int) -> list[object]:
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) > limit:
            self.refuse(key, f"is {quote(value)}, not a list of at most {limit} entries")
        return value

    def _of(self, kind: type[T], key: str, default: T | None, described: str) -> T:
        value = self._value(key, default)
        if not isinstance(value, kind):
            self.refuse(key, f"is {quote(value)}, not {described}")
        return value

    def _value(self, key: str, default: object) -> object:
        value = self.raw(key)
        found = default if value is None else value
        if found is None:
            self.refuse(key, "is missing")
        return found
