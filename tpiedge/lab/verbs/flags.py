"""Flags that several commands of the laboratory share."""

from collections.abc import Mapping
from types import ModuleType

import click

from tpiedge.cli.model_names import TESTBED
from tpiedge.cli.options import together
from tpiedge.errors import UserError

repeats_option = click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
wires_option = click.option(
    "--wire", default="f32", show_default=True, help="Precisions of messages, a list: f32,bf16,int8."
)
testbed_option = click.option(
    "--testbed",
    "testbed_name",
    type=TESTBED,
    metavar="NAME",
    help="Run on the devices and links of this testbed. Needs root.",
)
#: Flags with lists of settings. Each setting is measured.
varied_links = together(
    click.option(
        "--latency", help="One-way latencies between the testbed's devices in ms, a list: 0.5,1,3,5."
    ),
    click.option("--rate", help="Rates of the testbed's links in Mbit/s, a list: 100,300,none."),
)
nodes_options = together(
    click.option("--nodes", type=int, default=1, show_default=True, help="Number of nodes."),
    click.option("--shares", help="Relative shares, one per node: 3,1,2.  [default: even]"),
)
threads_option = click.option(
    "--threads", type=int, help="Threads per node.  [default: the cores divided by the nodes]"
)


def words(flags: Mapping[str, object]) -> tuple[str, ...]:
    """Returns a command's words; a flag without a value is left out."""
    return tuple(str(word) for pair in flags.items() if pair[1] is not None for word in pair)


def plots() -> ModuleType:
    """Returns tpiedge.lab.plots, whose import is slow. Raises UserError without matplotlib."""
    try:
        from tpiedge.lab import plots
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise UserError("--png needs matplotlib: pip install 'tpiedge[plot]'") from None
    return plots
