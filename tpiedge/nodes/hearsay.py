"""What another machine says, made safe to pass on, to log and to show on a terminal."""

__all__ = ["hearsay", "printable"]

#: Well below what a message may carry, with room for the words around it.
_LENGTH = 1000


def printable(text: str, kept: str = "") -> str:
    """With blanks for control characters, which could do anything to a terminal; those in `kept` stay."""
    return "".join(one if one.isprintable() or one in kept else " " for one in text)


def hearsay(text: str) -> str:
    """One line without control characters, cut to 1000 characters."""
    return printable(text[:_LENGTH]).strip()
