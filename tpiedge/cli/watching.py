"""What a master says of itself while it runs."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

import click

from tpiedge.joining.pairing import Pending
from tpiedge.master.master import Master
from tpiedge.master.status import ClusterStatus, NodeStatus, collective_names
from tpiedge.sanitise import sanitised_line
from tpiedge.supervision import Supervisor
from tpiedge.units import counted
from tpiedge.wire.fields import SpareKind

__all__ = ["Callers", "Changes", "watch"]

_WATCH_S = 0.1
_CALL_S = 5.0
_SPARE = {"excluded": "is left out", "no room": "cannot be used now", "too small": "cannot be used"}


def watch(running: Master, supervisor: Supervisor, pending: Callable[[], Sequence[Pending]]) -> None:
    """Prints what changes, `pending` workers too, until the user ends it. Raises what ended the control thread, or
    another one."""
    show, callers = Changes(_say), Callers(_say)
    while running.failed is None:
        supervisor.check()
        show(running.status)
        callers(pending(), time.monotonic())
        time.sleep(_WATCH_S)
    raise running.failed


def _say(line: str) -> None:
    click.echo(line, err=True)


class Callers:
    """Turns workers that show a code into lines: one for each, but no more than one within `_CALL_S`, whoever calls."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: frozenset[str] = frozenset()
        self._due = -math.inf

    def __call__(self, pending: Sequence[Pending], now: float) -> None:
        self._known &= {one.name for one in pending}
        new = [one for one in pending if one.name not in self._known]
        if new and now >= self._due:
            self._due = now + _CALL_S
            self._known |= {new[0].name}
            self._say(
                f"{sanitised_line(new[0].host)} ({new[0].address}) waits to join: type the code that it shows: "
                "tpiedge nodes approve CODE"
            )


class Changes:
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
                if node.spare not in ("", "no plan"):  # no plan: the summary says so
                    what = _SPARE.get(node.spare, "waits as a spare")
                    self._say(f"{_called(node, status)} {what}: {sanitised_line(node.why)}")


def _called(node: NodeStatus, status: ClusterStatus) -> str:
    """What its machine calls itself, with the name that tells it from others of that name."""
    host = node.host or node.name
    alone = all(other.name == node.name or other.host != host for other in status.nodes)
    return host if alone else f"{host} ({node.name})"


def _summary(status: ClusterStatus) -> str:
    if not status.ready:
        fetching = [node for node in status.nodes if node.fetched_bytes < node.fetch_total_bytes]
        return f"not ready: {status.reason}" + "".join(
            f"; {_called(node, status)} fetches" for node in fetching
        )
    parts = [node for node in status.nodes if node.rank is not None]
    names = ", ".join(_called(node, status) for node in parts)
    way = f", {collective_names(status.collective, status.bulk_collective)}" if status.collective else ""
    return f"ready: {counted(len(parts), 'node')} ({names}){way}"
