"""A group of commands whose --help says about each of them what it does, to the end of the sentence."""

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
