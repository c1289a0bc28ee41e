"""Types of flags and arguments that click's own ones take too lightly, and what a refused command line is told."""

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

_NOT_A_NUMBER = re.compile(r" is not a valid (integer|float)( range)?\.$")
_NUMBERS = {"integer": " is not a whole number", "float": " is not a number"}


class Location(click.Path):
    """A path. An empty one is refused: it would mean the current folder."""

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists, file_okay, dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty: give a path", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within a range; NaN is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not a number", param, ctx)
        return found


class CompletedName(click.types.StringParamType):
    """The name or the path of something. A shell completes the names that `sources` give; where none begins so, a path.

    A source that fails, as for a damaged cache, has no names.
    """

    def __init__(self, *sources: Callable[[click.Context], Iterable[str]]) -> None:
        self.sources = sources

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        found: list[str] = []
        for source in self.sources:
            with suppress(Exception):  # a traceback would spoil the line that is being typed
                found += source(ctx)
        names = [name for name in dict.fromkeys(found) if name.startswith(incomplete)]
        # The request for paths comes first: it makes bash forget what came before.
        return [CompletionItem(incomplete, type="file"), *map(CompletionItem, names)]


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
