"""What can be set: verbs and their flags, as plain data. The command line describes itself in these terms."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "integer", "number", "boolean", "size", "word"]

COMMON_TABLE = "common"
COMMON = ("cache", "state", "log-level")
"""Flags that mean the same to every verb: the table [common] and TPIEDGE_CACHE set them for all of them."""

SECRETS = frozenset({"api-key", "token", "password", "secret", "hub-token"})
"""Flags whose values are never shown."""


@dataclass(frozen=True)
class Flag:
    """`--key` of a verb. A `repeatable` one takes a list in a file."""

    key: str
    kind: Kind = "text"
    repeatable: bool = False

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return self.key in SECRETS

    @property
    def common(self) -> bool:
        return self.key in COMMON

    @property
    def wanted(self) -> str:
        """What a file may say, in words."""
        one = {
            "text": "a text in quotes",
            "integer": "an integer",
            "number": "a number",
            "boolean": "true or false",
            "size": 'a size like "4GB" or an integer',
            "word": "a word in quotes or an integer",
        }[self.kind]
        return f"a list, each of it {one}" if self.repeatable else one


@dataclass(frozen=True)
class Verb:
    """A command by its words ("bench", "decode"), and its flags."""

    words: tuple[str, ...]
    flags: tuple[Flag, ...]

    @property
    def table(self) -> str:
        """Its table in a file: [bench.decode]."""
        return ".".join(self.words)

    def variables(self, flag: Flag) -> tuple[str, ...]:
        """Its environment variables; the first that is set counts."""
        own = _variable(*self.words, flag.key)
        return (own, _variable(flag.key)) if flag.common else (own,)

    @property
    def prefix(self) -> str:
        """How the names of all its own variables begin."""
        return _variable(*self.words) + "_"


def takes(flag: Flag, value: object) -> bool:
    """Whether a value of a file has the right type."""
    if flag.repeatable:
        return isinstance(value, list) and all(_takes_one(flag.kind, item) for item in value)
    return _takes_one(flag.kind, value)


def _takes_one(kind: Kind, value: object) -> bool:
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    allowed: dict[Kind, tuple[type, ...]] = {
        "text": (str,),
        "integer": (int,),
        "number": (int, float),
        "size": (int, str),
        "word": (int, str),
    }
    return isinstance(value, allowed[kind])


def _variable(*words: str) -> str:
    return "_".join(("TPIEDGE", *words)).upper().replace("-", "_")
