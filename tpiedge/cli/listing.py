"""Lists of commands in --help, and plain tables."""

from collections.abc import Iterator, Sequence

import click


class ListingGroup(click.Group):
    """A group whose --help shows whole sentences, which click would cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(1000)) for name, command in shown if not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        first, *others = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([first, *(cell.strip().rjust(len(cell)) for cell in others)]).rstrip()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo("\n".join(table_lines(header, rows)))
