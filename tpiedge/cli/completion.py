"""`tpiedge completion`: the script that completes verbs and flags in a shell."""

import click
from click.shell_completion import get_completion_class

from tpiedge.errors import InternalError

_VARIABLE = "_TPIEDGE_COMPLETE"  # click reads it: every verb of the command completes through it


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what SHELL needs: `source <(tpiedge completion bash)`."""
    kind = get_completion_class(shell)
    if kind is None:
        raise InternalError(f"click has no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "tpiedge", _VARIABLE).source())
