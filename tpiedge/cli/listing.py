"""Lists of commands in --help, and plain tables."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click


class ListingGroup(click.Group):
    """A group whose --help shows commands' whole first sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(1000)) for name, command in shown if not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)


def screen_columns() -> int | None:
    """Returns the columns of standard output; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(line: str, columns: int | None) -> list[str]:
    """Wraps `line` at `columns`; None keeps it whole."""
    if columns is None or len(line) <= columns:
        return [line]
    return textwrap.wrap(line, max(columns, 10), subsequent_indent="  ", break_on_hyphens=False)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None
) -> Iterator[str]:
    """Yields the lines of a table. The first column is left-aligned, other columns are right-aligned. A table wider
    than `columns` characters becomes several tables. Each table has the first column. Without `columns`, the width is
    unlimited."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    parts = [list(range(len(widths)))]
    if columns is not None:
        least = len(_parts(widths, columns))
        every = (_parts(widths, limit) for limit in range(columns + 1))
        parts = next(some for some in every if len(some) == least)  # of similar widths
    for part in parts:
        for row in (header, ["-" * width for width in widths], *rows):
            first, *others = [row[at].ljust(widths[at]) for at in part]
            yield "  ".join([first, *(cell.strip().rjust(len(cell)) for cell in others)]).rstrip()


def _parts(widths: Sequence[int], columns: int) -> list[list[int]]:
    """Splits a table's columns into parts that fit into `columns` if possible. Each part begins with the first
    column."""
    parts: list[list[int]] = [[0]]
    for at, width in enumerate(widths[1:], 1):
        if sum(widths[one] + 2 for one in parts[-1]) + width > columns and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(at)
    return parts


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo("\n".join(table_lines(header, rows, screen_columns())))
