"""What names a testbed on the command line. A shell completes those that come along, and those that are up."""

from collections.abc import Iterable

import click

from tpiedge.cli.types import CompletedName
from tpiedge.testbed.scenarios import shipped_scenarios
from tpiedge.testbed.state import names

__all__ = ["RUNNING_TESTBED", "TESTBED"]


def _shipped(_context: click.Context) -> Iterable[str]:
    return shipped_scenarios()


def _running(_context: click.Context) -> Iterable[str]:
    return names()


TESTBED = CompletedName(_shipped, _running)
RUNNING_TESTBED = CompletedName(_running)
