"""What another machine says, made safe to pass on, to log and to show on a terminal."""

__all__ = ["hearsay"]

#: Well below what a message may carry, with room for the words around it.
_LENGTH = 1000


def hearsay(text: str) -> str:
    """One line without control characters, cut to 1000 characters."""
    return "".join(one if one.isprintable() else " " for one in text[:_LENGTH]).strip()
