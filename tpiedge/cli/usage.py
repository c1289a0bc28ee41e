"""What is wrong with a command line, in words of people where click's are not."""

import re

import click

_NOT_A_NUMBER = re.compile(r" is not a valid (integer|float)( range)?\.$")
_NUMBERS = {"integer": " is not a whole number", "float": " is not a number"}


def usage_words(error: click.ClickException) -> str:
    """The line for `error`: a flag's range as numbers, the likeliest of misspelt flags alone, or where help is."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"{error.message} Did you mean {error.possibilities[0]!r}?"
    words = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None and _leaves_one_alone(error):
        return f"{words.removesuffix('.')}: '{error.ctx.command_path} --help' shows what there is"
    return value_words(words, error)


def value_words(words: str, error: click.ClickException) -> str:
    """What click says in `words` of a value that `error` refuses, which may be no number."""
    found = _NOT_A_NUMBER.search(words)
    return words if found is None else words[: found.start()] + _NUMBERS[found[1]] + _range_of(error)


def _leaves_one_alone(error: click.UsageError) -> bool:
    """Whether click's words end with what is wrong: those about a value tell what it may be."""
    if isinstance(error, click.NoSuchCommand | click.NoSuchOption):
        return not error.possibilities
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return not isinstance(error.param.type, click.Choice)
    return not isinstance(error, click.BadParameter)


def _range_of(error: click.ClickException) -> str:
    kind = getattr(getattr(error, "param", None), "type", None)
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    if kind.max is None:
        return f": give one from {kind.min}"
    return f": give one from {kind.min} to {kind.max}"
