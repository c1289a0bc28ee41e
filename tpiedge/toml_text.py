"""TOML, read in bounded time, or refused in one line."""

import tomllib
from typing import Any, Final

from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line

#: In a line, and in all. tomllib takes time by the square of a dotted key's parts, those of its table included: ten
#: seconds for 30,000 of one key.
_MOST_DOTS: Final = 256
_MOST_DOTS_IN_ALL: Final = 8192
_MOST_SAID: Final = 200


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Raises UserError that begins with `source`, which stays as it is."""
    if text.count(".") > _MOST_DOTS_IN_ALL:
        raise UserError(f"{source} has more than {_MOST_DOTS_IN_ALL} dots")
    # Not by splitlines: what else ends a line elsewhere may be part of a key.
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MOST_DOTS:
            raise UserError(f"{source} has more than {_MOST_DOTS} dots in line {number}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise UserError(f"{source} is not valid TOML: {_said(error)}") from None


def _said(error: Exception) -> str:
    """With its end, which names the place."""
    said = str(error)
    if len(said) > _MOST_SAID:
        said = f"{said[: _MOST_SAID // 2]}...{said[-_MOST_SAID // 2 :]}"
    return sanitised_line(said)
