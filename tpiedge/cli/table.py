"""What verbs print: plain tables for people, --json for programs."""

from collections.abc import Sequence

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        first, *others = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join([first, *(cell.strip().rjust(len(cell)) for cell in others)]).rstrip())
