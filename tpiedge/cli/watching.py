"""What a master says of itself while it runs."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

from tpiedge.host.usage import FreedMemory
from tpiedge.joining.pairing import Pending
from tpiedge.master.master import Master
from tpiedge.master.status import ClusterStatus, NodeStatus, collective_names
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.supervision import Supervisor
from tpiedge.units import counted
from tpiedge.wire.fields import SpareKind

_WATCH_S = 0.1
_CALL_S, _FORGIVEN_S = 5.0, 600.0
_SPARE = {
    "drained": "is drained",
    "excluded": "is left out",
    "no room": "cannot be used now",
    "too small": "cannot be used",
}


def watch(
    running: Master,
    supervisor: Supervisor,
    pending: Callable[[], Sequence[Pending]],
    say: Callable[[str], None],
) -> None:
    """Says what changes, `pending` workers too, until the user ends it. Raises what ended the control thread, or
    another one. Meanwhile what floods took is given back to the system."""
    show, callers, freed = Changes(say), Callers(say), FreedMemory()
    while running.failed is None:
        supervisor.check()
        show(running.status)
        callers(pending(), time.monotonic())
        freed.give_back(time.monotonic())
        time.sleep(_WATCH_S)
    raise running.failed


class Callers:
    """Turns workers that show a code into lines: one for each, but ever fewer the more they are, whoever calls."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: frozenset[str] = frozenset()
        self._due, self._pause_s = -math.inf, _CALL_S

    def __call__(self, pending: Sequence[Pending], now: float) -> None:
        self._known &= {one.name for one in pending}
        new = [one for one in pending if one.name not in self._known]
        if now >= self._due + _FORGIVEN_S:
            self._pause_s = _CALL_S
        if new and now >= self._due:
            self._due = now + self._pause_s
            self._pause_s *= 2
            self._known |= {new[0].name}
            self._say(
                f"{new[0].address} waits to join: type 'tpiedge nodes approve CODE' with the code on its screen "
                f"(it says that it is {quote(new[0].host)})"
            )


class Changes:
    """Turns snapshots into lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""
        #: Of each machine in the last snapshot, the reason for which the plan has no part for it.
        self._spare: dict[str, SpareKind | Literal[""]] = {}

    def __call__(self, status: ClusterStatus) -> None:
        line = _summary(status)
        if line != self._last:
            self._last = line
            self._say(line)
        said, self._spare = self._spare, {node.name: node.spare for node in status.nodes}
        for node in status.nodes:
            # No plan: the summary says so.
            if node.spare != said.get(node.name, "") and node.spare not in ("", "no plan"):
                what = _SPARE.get(node.spare, "waits as a spare")
                self._say(f"{_called(node, status)} {what}: {sanitised_line(node.why)}")


def _called(node: NodeStatus, status: ClusterStatus) -> str:
    """What its machine calls itself, with the name that tells it from others of that name."""
    host = node.host or node.name
    others = (other for other in status.nodes if other.name != node.name)
    return f"{node.name} ({host})" if any(host in (other.name, other.host) for other in others) else host


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
