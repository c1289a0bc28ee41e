"""Types of flags and arguments that click's own ones take too lightly."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem


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
