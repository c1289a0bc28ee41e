"""The links between the nodes of an epoch, measured before its first step: one node at a time, so that measurements do
not disturb each other, by echoes over the connections that the tensors will take.
"""

import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tpiedge.clock import Clock
from tpiedge.collectives.communicator import Liveness
from tpiedge.collectives.courier import node_name
from tpiedge.errors import Misconduct, PeerLost
from tpiedge.nodes.probing import Link, Probing
from tpiedge.planner.network import NetworkFacts, PairFacts
from tpiedge.transport.endpoint import Endpoint, Envelope, LinkReset, MalformedMessage, Unreachable
from tpiedge.units import KIB
from tpiedge.wire.data import LinkReport, MeasuredLink, Survey
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.messages import Message

__all__ = ["LinkSurvey"]

_SLICE_S: Final = 0.05
_PAIR_S: Final = 2.0
_PAYLOAD_BYTES: Final = 48 * KIB
_PAYLOADS: Final = 6


class LinkSurvey:
    """One rank's part. `endpoint` has nothing else to receive until it is over."""

    def __init__(
        self, endpoint: Endpoint, liveness: Liveness, clock: Clock, epoch: int, rank: int, size: int
    ) -> None:
        self._endpoint = endpoint
        self._liveness = liveness
        self._clock = clock
        self._epoch = epoch
        self._rank = rank
        self._size = size
        self._ranks = {node_name(peer): peer for peer in range(size)}

    def run(self, reached: Collection[int]) -> NetworkFacts | None:
        """Take part until it is over. `reached`: the ranks below this one to which it has a link. What rank 0 learns
        it returns. Raises PeerLost, ProtocolError."""
        if self._rank == 0:
            return self._lead()
        while True:
            message = self._next(0, "its turn in the survey of the links").message
            if isinstance(message, Survey):
                if message.turn == 0:
                    return None
                if message.turn == self._rank:
                    self._send(self._measured(reached), 0)

    def _lead(self) -> NetworkFacts:
        links: dict[tuple[int, int], PairFacts] = {}
        hosts: list[str] = [_machine()]
        cores: dict[str | int, int] = {hosts[0]: os.cpu_count() or 1}
        for turn in range(1, self._size):
            self._tell(Survey(self._epoch, turn))
            report = self._report_of(turn)
            hosts.append(report.host)
            cores[report.host] = max(1, report.cores)
            for link in report.links:
                rate = link.bytes_per_s or None
                links[link.rank, turn] = PairFacts(link.round_trip_s / 2, rate)
        self._tell(Survey(self._epoch, 0))
        return NetworkFacts(links, tuple(hosts), cores)

    def _report_of(self, turn: int) -> LinkReport:
        what = f"the links of node {turn}"
        while True:
            message = self._next(turn, what).message
            if not isinstance(message, LinkReport):
                continue
            ranks = [link.rank for link in message.links]
            if message.sender != turn or not set(ranks) <= set(range(turn)) or 0 not in ranks:
                raise Misconduct(turn, f"node {turn} reports links that it cannot have: {message}")
            return message

    def _measured(self, reached: Collection[int]) -> LinkReport:
        found = {rank: self._measure(rank) for rank in sorted(reached)}
        links = tuple(
            MeasuredLink(rank, link.round_trip_s, link.bytes_per_s)
            for rank, link in found.items()
            if link is not None
        )
        return LinkReport(self._epoch, self._rank, _machine(), os.cpu_count() or 1, links)

    def _measure(self, rank: int) -> Link | None:
        """None where the other does not answer; rank 0's silence is a loss."""
        probing = Probing(_PAYLOAD_BYTES, _PAYLOADS, self._epoch)
        deadline = self._clock.now() + _PAIR_S
        self._send(probing.begin(self._clock.now()), rank)
        while rank == 0 or self._clock.now() < deadline:
            envelope = self._receive(rank, f"an echo of node {rank}")
            if envelope is None or not isinstance(envelope.message, Echo):
                continue
            if self._ranks[envelope.sender] != rank:
                continue
            result = probing.heard(envelope.message, self._clock.now())
            if isinstance(result, Link):
                return result
            if result is not None:
                self._send(result, rank)
        return None

    def _next(self, rank: int, what: str) -> Envelope:
        """The next message that is no probe, while `rank` lives."""
        while True:
            envelope = self._receive(rank, what)
            if envelope is not None:
                return envelope

    def _receive(self, rank: int, what: str) -> Envelope | None:
        """None where nothing came for a moment, or what came has been answered."""
        try:
            envelope = self._endpoint.recv(_SLICE_S)
        except (LinkReset, MalformedMessage) as error:
            raise PeerLost(self._ranks[error.peer], what, str(error)) from error
        if envelope is None:
            self._liveness.check(rank, what)
        elif isinstance(envelope.message, Probe):
            probe = envelope.message
            payload = bytes(min(probe.answer_bytes, _PAYLOAD_BYTES))
            self._send(Echo(self._epoch, probe.number, payload), self._ranks[envelope.sender])
        elif getattr(envelope.message, "epoch", self._epoch) == self._epoch:
            return envelope
        return None

    def _tell(self, message: Message) -> None:
        for rank in range(1, self._size):
            self._send(message, rank)

    def _send(self, message: Message, rank: int) -> None:
        what = f"sending {type(message).__name__} to node {rank}"
        while True:
            try:
                self._endpoint.send(message, to=node_name(rank), timeout_s=_SLICE_S)
                return
            except Unreachable:
                self._liveness.check(rank, what)


def _machine() -> str:
    """The same for all processes of a machine, its containers included; another one on every other machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()[:256]
