"""Flags that the verbs of `tpiedge eval` share."""

import click

from tpiedge.cli.options import MEMORY
from tpiedge.cli.types import Location

threads_option = click.option(
    "--threads", type=int, help="Threads per node.  [default: the cores divided by the nodes]"
)
memory_option = click.option(
    "--memory", type=MEMORY, help="Limit per node; weights that do not fit stream from disk."
)
text_option = click.option(
    "--text",
    type=Location(dir_okay=False),
    metavar="FILE",
    help="UTF-8; a form feed begins a new document.  [default: for 'demo' a text that it was not trained on]",
)
context_option = click.option(
    "--context", type=int, help="Tokens of a window.  [default: the model's positions, 2048 at most]"
)
stride_option = click.option(
    "--stride", type=int, help="New tokens of each window after the first.  [default: half the context]"
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on standard output."
)
