"""Text of strangers - other machines, the files of a model - made safe to log, to pass on and to show on a terminal."""

_NAME_CHARACTERS = 64


def sanitised(text: str, kept: str = "") -> str:
    """`text` with blanks for control characters, which could do anything to a terminal; those in `kept` stay."""
    return "".join(one if one.isprintable() or one in kept else " " for one in text)


def sanitised_line(text: object, limit: int = 1000) -> str:
    """`text` as one printable line without quotes. The usual limit is well below what a message may carry, with room
    for the words around it."""
    line = " ".join(str(text).split())
    line = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in line[: 2 * limit])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def sanitised_name(name: str) -> str:
    """What a stranger calls itself: short, in ASCII, never empty."""
    clean = "".join(one for one in name if one.isprintable() and one.isascii())
    return clean[:_NAME_CHARACTERS].strip() or "unnamed"


def quote(value: object, limit: int = 60) -> str:
    """`value` as Python writes it, in ASCII and cut to `limit` characters."""
    text = ascii(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
