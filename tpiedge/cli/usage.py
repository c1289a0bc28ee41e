"""What is wrong with a command line, in words of people where click's are not."""

import re

import click

__all__ = ["usage_words"]

_NOT_A_NUMBER = re.compile(r" is not a valid (integer|float)( range)?\.$")
_NUMBERS = {"integer": " is not a whole number", "float": " is not a number"}


def usage_words(error: click.ClickException) -> str:
    """The line for `error`: a flag's range as numbers, and the likeliest of misspelt flags alone."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"{error.message} Did you mean {error.possibilities[0]!r}?"
    words = error.format_message()
    found = _NOT_A_NUMBER.search(words)
    return words if found is None else words[: found.start()] + _NUMBERS[found[1]] + _range_of(error)


def _range_of(error: click.ClickException) -> str:
    kind = getattr(getattr(error, "param", None), "type", None)
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    if kind.max is None:
        return f": give one from {kind.min}"
    return f": give one from {kind.min} to {kind.max}"
