"""Types of flags and arguments that click's own ones take too lightly."""

import math
from pathlib import Path
from typing import Any

import click

__all__ = ["Location", "Number"]


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
