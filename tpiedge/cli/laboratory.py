"""Verbs that answer and serve find here what they have of the laboratory, which is imported once it is asked for."""

import pkgutil
from collections.abc import Callable, Iterable

import click

from tpiedge.cli.types import CompletedName
from tpiedge.local.launch import Devices


def emulated(given: str | None, nodes: int | None) -> Devices | None:
    """Returns the first `nodes` devices of the testbed with that name or file, by default all; None without a testbed.
    Raises UserError."""
    found: Devices | None = None
    if given is not None:
        found = pkgutil.resolve_name("tpiedge.lab.testbed.running:emulated")(given, nodes)
    return found


def _names(path: str) -> Callable[[click.Context], Iterable[str]]:
    """Returns the names that the function at MODULE:FUNCTION returns, for a shell that completes them."""

    def names(_context: click.Context) -> Iterable[str]:
        found: Iterable[str] = pkgutil.resolve_name(path)()
        return found

    return names


_RUNNING = _names("tpiedge.lab.testbed.state:names")
TESTBED = CompletedName(_names("tpiedge.lab.testbed.reading:shipped_scenarios"), _RUNNING)
RUNNING_TESTBED = CompletedName(_RUNNING)
