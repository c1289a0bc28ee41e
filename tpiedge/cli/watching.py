"""What a master says of itself while it runs."""

import time
from collections.abc import Callable

import click

from tpiedge.master.master import Master
from tpiedge.master.status import ClusterStatus, collective_names
from tpiedge.units import counted

__all__ = ["watch"]

_WATCH_S = 0.1


def watch(running: Master) -> None:
    """Prints what changes, until the user ends it. Raises what ended the control thread."""
    show = _Changes(lambda line: click.echo(line, err=True))
    while running.failed is None:
        show(running.status)
        time.sleep(_WATCH_S)
    raise running.failed


class _Changes:
    """Turns snapshots into lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""

    def __call__(self, status: ClusterStatus) -> None:
        line = _summary(status)
        if line != self._last:
            self._last = line
            self._say(line)


def _summary(status: ClusterStatus) -> str:
    if not status.ready:
        fetching = [node for node in status.nodes if node.fetched_bytes < node.fetch_total_bytes]
        return f"not ready: {status.reason}" + "".join(f"; {node.host} fetches" for node in fetching)
    parts = [node for node in status.nodes if node.rank is not None]
    names = ", ".join(node.host or node.name for node in parts)
    way = f", {collective_names(status.collective, status.bulk_collective)}" if status.collective else ""
    return f"ready: {counted(len(parts), 'node')} ({names}){way}"
