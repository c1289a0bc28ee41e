"""What a master says of itself while it runs."""

import time
from collections.abc import Callable
from typing import Literal

import click

from tpiedge.master.master import Master
from tpiedge.master.status import ClusterStatus, NodeStatus, collective_names
from tpiedge.sanitise import sanitised_line
from tpiedge.supervision import Supervisor
from tpiedge.units import counted
from tpiedge.wire.fields import SpareKind

__all__ = ["watch"]

_WATCH_S = 0.1
_SPARE = {"excluded": "is left out", "no room": "cannot be used now", "too small": "cannot be used"}


def watch(running: Master, supervisor: Supervisor) -> None:
    """Prints what changes, until the user ends it. Raises what ended the control thread, or another one."""
    show = _Changes(lambda line: click.echo(line, err=True))
    while running.failed is None:
        supervisor.check()
        show(running.status)
        time.sleep(_WATCH_S)
    raise running.failed


class _Changes:
    """Turns snapshots into lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""
        #: Of each machine, the reason for which the plan has no part for it, as was said last.
        self._spare: dict[str, SpareKind | Literal[""]] = {}

    def __call__(self, status: ClusterStatus) -> None:
        line = _summary(status)
        if line != self._last:
            self._last = line
            self._say(line)
        for node in status.nodes:
            if node.spare != self._spare.get(node.name, ""):
                self._spare[node.name] = node.spare
                self._say_spare(node)

    def _say_spare(self, node: NodeStatus) -> None:
        """Says that the plan has no part for a machine. That no plan has any for anybody is in the summary."""
        if node.spare not in ("", "no plan"):
            self._say(f"{node.host} {_SPARE.get(node.spare, 'waits as a spare')}: {sanitised_line(node.why)}")


def _summary(status: ClusterStatus) -> str:
    if not status.ready:
        fetching = [node for node in status.nodes if node.fetched_bytes < node.fetch_total_bytes]
        return f"not ready: {status.reason}" + "".join(f"; {node.host} fetches" for node in fetching)
    parts = [node for node in status.nodes if node.rank is not None]
    names = ", ".join(node.host or node.name for node in parts)
    way = f", {collective_names(status.collective, status.bulk_collective)}" if status.collective else ""
    return f"ready: {counted(len(parts), 'node')} ({names}){way}"
