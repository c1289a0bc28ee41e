"""Measures the links between nodes before an epoch's first step. The nodes take turns. Each measures echoes over its
tensor connections."""

import math
import platform
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from tpiedge.clock import Clock
from tpiedge.collectives.communicator import Liveness
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import Misconduct, PeerLost
from tpiedge.host.device import usable_cores
from tpiedge.planner.network import NetworkFacts, PairFacts
from tpiedge.transport.endpoint import Endpoint, LinkReset, MalformedMessage, Unreachable
from tpiedge.units import KIB
from tpiedge.wire.data import LinkReport, MeasuredLink, Survey
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.fields import Message
from tpiedge.wire.probing import LinkSpeed, Probing

_SLICE_S: Final = 0.05
_START_S: Final = 180.0  # until all nodes are there: the slowest may still be starting
#: Seconds for one node's turn, and further seconds for each of its links to a rank above 0.
_TURN_S: Final = 60.0
_PAIR_S: Final = 5.0
_PAYLOAD_BYTES: Final = 48 * KIB
_MOST_PROBES: Final = 32  # answered to one node in one survey; an honest one sends 11
_SILENT: Final = "it does not answer"


class LinkSurvey:
    """One rank's part in the survey. Other messages must not arrive at `endpoint` meanwhile. Rank 0 raises Misconduct
    for messages out of turn."""

    def __init__(
        self, endpoint: Endpoint, liveness: Liveness, clock: Clock, epoch: int, rank: int, size: int
    ) -> None:
        self._endpoint, self._liveness, self._clock = endpoint, liveness, clock
        self._epoch, self._rank, self._size = epoch, rank, size
        self._ranks = {node_name(peer): peer for peer in range(size)}
        self._probes: Counter[int] = Counter()

    def run(self, reached: Collection[int]) -> NetworkFacts | None:
        """Measures the links. Rank 0 returns the facts of all links; other ranks return None. `reached` has the
        lower ranks with a link to this node. Raises PeerLost, ProtocolError."""
        self._probes.clear()
        if self._rank == 0:
            return self._lead()
        deadline = self._clock.now() + _START_S + self._size * (_TURN_S + self._size * _PAIR_S)
        while True:
            message = self._await(0, "its turn in the survey of the links", deadline)
            turn = message.turn if isinstance(message, Survey) else None
            if turn == 0:
                return None
            if turn == self._rank:
                found = tuple(filter(None, map(self._measure, sorted(reached))))
                report = LinkReport(self._epoch, self._rank, _machine(), _cores(), found)
                self._send(report, 0, self._clock.now() + _TURN_S)

    def _lead(self) -> NetworkFacts:
        deadline = self._clock.now() + _START_S
        for rank in range(1, self._size):  # a node that starts late would seem to be behind a slow link
            self._send(Probe(self._epoch, 0, 0), rank, deadline)
            while not isinstance(self._await(rank, f"the start of node {rank}", deadline), Echo):
                pass
        links: dict[tuple[int, int], PairFacts] = {}
        round_trips_s: dict[tuple[int, int], float] = {}
        hosts: list[str] = [_machine()]
        cores: dict[str | int, int] = {hosts[0]: _cores()}
        for turn in range(1, self._size):
            deadline = self._clock.now() + _TURN_S + turn * _PAIR_S
            self._send(Survey(self._epoch, turn), turn, deadline)
            report = self._report_of(turn, deadline)
            hosts.append(report.host)
            cores.setdefault(report.host, max(1, report.cores))
            for link in report.links:
                round_trips_s[link.rank, turn] = link.round_trip_s
                links[link.rank, turn] = PairFacts.measured(link.round_trip_s, link.bytes_per_s)
        for rank in range(1, self._size):
            self._send(Survey(self._epoch, 0), rank, self._clock.now() + _TURN_S)
        return NetworkFacts(links, tuple(hosts), cores, round_trips_s=round_trips_s)

    def _report_of(self, turn: int, deadline: float) -> LinkReport:
        message = self._await(turn, f"the links of node {turn}", deadline)
        if not isinstance(message, LinkReport):
            raise Misconduct(turn, f"node {turn} sent {type(message).__name__} instead of its links")
        ranks = [link.rank for link in message.links]
        once = len(set(ranks)) == len(ranks)
        if message.sender != turn or not once or 0 not in ranks or max(ranks) >= turn:
            raise Misconduct(turn, f"node {turn} reports links that it cannot have: {message}")
        return message

    def _measure(self, rank: int) -> MeasuredLink | None:
        probing = Probing(_PAYLOAD_BYTES, payloads=6, epoch=self._epoch)
        deadline = self._clock.now() + (_PAIR_S if rank else _TURN_S)
        step: Probe | LinkSpeed | None = probing.next_probe(self._clock.now())
        try:
            while not isinstance(step, LinkSpeed):
                if step is not None:
                    self._send(step, rank, deadline)
                echo = self._await(rank, f"an echo of node {rank}", deadline)
                step = probing.receive(echo, self._clock.now()) if isinstance(echo, Echo) else None
        except PeerLost as lost:
            if rank == 0 or (lost.rank, lost.cause) != (rank, _SILENT):
                raise
            return None
        return MeasuredLink(rank, step.round_trip_s, step.bytes_per_s)

    def _send(self, message: Message, rank: int, deadline: float) -> None:
        while True:
            try:
                return self._endpoint.send(message, to=node_name(rank), timeout_s=_SLICE_S)
            except Unreachable:
                # Not `check`: a node that starts, or waits for its turn, has no progress to show.
                what = f"sending {type(message).__name__} to it"
                self._liveness.check_idle(rank, what)
                if self._clock.now() >= deadline:
                    raise PeerLost(rank, what, _SILENT) from None

    def _await(self, rank: int, what: str, deadline: float) -> Message:
        while self._clock.now() < deadline:  # even if the node sends other messages without end
            message = self._receive(rank, what)
            if message is not None:
                return message
            self._liveness.check_idle(rank, what)
        raise PeerLost(rank, what, _SILENT)

    def _receive(self, rank: int, what: str) -> Message | None:
        try:
            envelope = self._endpoint.recv(_SLICE_S)
        except LinkReset as error:
            raise PeerLost(self._ranks[error.peer], what, f"its connection {error.broke}") from error
        except MalformedMessage as error:
            raise Misconduct(self._ranks[error.peer], str(error)) from error
        if envelope is None:
            return None
        sender, message = self._ranks[envelope.sender], envelope.message
        if getattr(message, "epoch", self._epoch) != self._epoch:
            return None
        if isinstance(message, Probe):
            # A node that asks without end, or reads nothing, costs a moment.
            self._probes[sender] += 1
            echo = Echo(self._epoch, message.number, bytes(min(message.answer_bytes, _PAYLOAD_BYTES)))
            if sender == 0:
                self._send(echo, 0, self._clock.now() + _TURN_S)
            elif self._probes[sender] <= _MOST_PROBES:
                with suppress(Unreachable):
                    self._endpoint.send(echo, to=node_name(sender), timeout_s=_SLICE_S)
            return None
        if sender != rank and self._rank == 0:
            raise Misconduct(sender, f"node {sender} sent {type(message).__name__} out of its turn")
        return message if sender == rank else None


def _cores() -> int:
    return max(1, math.floor(usable_cores()))


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()[:256]
