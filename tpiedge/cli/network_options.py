"""Where nodes run and how they add up their parts: the flags of every verb that starts them."""

from typing import get_args

import click

from tpiedge.cli.laboratory import TESTBED
from tpiedge.wire.fields import CollectiveChoice, WirePrecision

collective_option = click.option(
    "--collective",
    type=click.Choice(get_args(CollectiveChoice)),
    default="auto",
    show_default=True,
    help="How nodes add up their parts; auto: what is fastest over the measured links.",
)
wire_option = click.option(
    "--wire",
    type=click.Choice(get_args(WirePrecision)),
    default="f32",
    show_default=True,
    help="How parts travel between nodes; all but f32 are rounded.",
)
testbed_option = click.option(
    "--testbed",
    "testbed_name",
    type=TESTBED,
    metavar="NAME",
    help="Run the nodes on the devices of this testbed (see 'tpiedge testbed ls'); root only.",
)
