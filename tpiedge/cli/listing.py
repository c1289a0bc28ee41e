"""What verbs list: commands in --help, of which each is imported when it is run, and rows in plain tables."""

import pkgutil
from collections.abc import Iterator, Sequence
from typing import Any

import click

_WHOLE = 1000


class ListingGroup(click.Group):
    """click would cut the sentences to a line each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(_WHOLE)) for name, command in shown if not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class LateGroup(ListingGroup):
    """Imports a command when it is run: together they import ten times what one of them needs.

    Until a command is run, `commands` has an outline of it: its name and the line that --help lists."""

    def __init__(self, name: str | None = None, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self._paths: dict[str, str] = {}

    def add_late(self, name: str, path: str, line: str) -> None:
        """Add the command at the import path MODULE:COMMAND; `line` is the short form of its own help."""
        super().add_command(click.Command(name, help=line))
        self._paths[name] = path

    def load(self, name: str) -> None:
        """Puts the command in the place of its outline, once; other names are left alone."""
        if name in self._paths:
            self.add_command(pkgutil.resolve_name(self._paths[name]), name)
            del self._paths[name]  # now: an import that failed fails again

    def load_all(self) -> None:
        """Imports every command: for tests and tools that look into them all."""
        for name in tuple(self._paths):
            self.load(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Where click turns the words of a command line, or of one to be completed, into a command."""
        self.load(args[0])
        return super().resolve_command(ctx, args)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        first, *others = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([first, *(cell.strip().rjust(len(cell)) for cell in others)]).rstrip()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in table_lines(header, rows):
        click.echo(line)
