"""Predicts all-reduces and chooses the fastest collective (TPI-LLM, section 3.2 and appendix A.1).

A node ends a phase once it has received all messages and its own messages have left. A message costs latency, transfer,
encryption and copies. The slowest of three limits the transfer: the link and both machines' network ports. With N
nodes, B bytes, and links of t seconds latency and r bytes per second, an all-reduce takes:

    star      2 t        + 2 (N-1) B / r             all to rank 0, and back
    mesh      t          + (N-1) B / r               all to all
    two-shot  2 t        + 2 (N-1)/N B / r           slices to nodes, then sums to all
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, permutations
from math import inf
from typing import Final, NamedTuple

from tpiedge.units import format_bytes, format_seconds
from tpiedge.wire.fields import CollectiveChoice, CollectiveName


class Hop(NamedTuple):
    """A message with `part` of the tensor."""

    source: int
    target: int
    part: float = 1.0


def phases(collective: CollectiveName, size: int) -> Iterator[Sequence[Hop]]:
    """Yields the messages of each phase of an all-reduce."""
    if collective == "star":
        yield [Hop(rank, 0) for rank in range(1, size)]
        yield [Hop(0, rank) for rank in range(1, size)]
        return
    times, part = (1, 1.0) if collective == "mesh" else (2, 1 / size)
    for _ in range(times):
        yield [Hop(a, b, part) for a in range(size) for b in range(size) if a != b]


TIE: Final = 0.05  # the simplest collective within this part of the fastest is chosen
_CHOICES: Final[tuple[CollectiveName, ...]] = ("star", "mesh", "two-shot")
_NATIVE: Final = frozenset[CollectiveName](("star", "mesh"))

Host = str | int
_Port = tuple[str, Host]
_PortSide = tuple[_Port, str]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that messages cost at either end."""

    # Fitted to `tpiedge bench allreduce` over loopback on two Zen 4 cores (CURVE, f32, 4 B to 1 MiB). Star among 4
    # nodes: 0.21 ms for 4 B, 0.40 for 32 KiB, 1.64 for 256 KiB. Among 8 nodes: 0.44, 0.89, 3.42. Two nodes: 0.09, 0.12,
    # 0.42.
    message_s: float = 20e-6  # of any message of an all-reduce that is one native call
    byte_s: float = 0.65e-9  # of each of its bytes: encryption or decryption, copies, the kernel
    wake_s: float = 25e-6  # once per phase: waking up a receiver that waited
    stepwise_s: float = 70e-6  # as `message_s` without a native call; 50 to 100 us were measured


_COSTS: Final = Costs()


@dataclass(frozen=True, slots=True)
class PairFacts:
    """A link. `bytes_per_s` is None if unlimited or unknown."""

    one_way_latency_s: float
    bytes_per_s: float | None = None

    @staticmethod
    def measured(round_trip_s: float, bytes_per_s: float) -> "PairFacts":
        """Derives a link from the round trip of an empty echo and the rate of a full echo."""
        # Processing is subtracted, because predictions add it. If it takes most of the time, the rate is unlimited.
        latency_s = max(0.0, round_trip_s / 2 - 2 * _COSTS.message_s - _COSTS.wake_s)
        byte_s = 1 / bytes_per_s - 2 * _COSTS.byte_s if bytes_per_s >= 1 else 0.0
        return PairFacts(latency_s, 1 / byte_s if byte_s > _COSTS.byte_s else None)


@dataclass(frozen=True)
class NetworkFacts:
    """The nodes, by rank, and their links. Pairs without a link cannot reach each other. Rank 0 needs all links."""

    links: Mapping[tuple[int, int], PairFacts]  # by pairs of ranks, in one order or both
    #: Each rank's machine. Ranks on one machine share its port and cores.
    hosts: tuple[Host, ...]
    cores: Mapping[Host, int] = field(default_factory=dict)  # 1 by default
    costs: Costs = _COSTS
    #: Only shown to people. A pair of ranks has the lower rank first.
    round_trips_s: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.hosts)

    def link(self, source: int, target: int) -> PairFacts | None:
        return self.links.get((source, target)) or self.links.get((target, source))

    @cached_property
    def port_rates(self) -> Mapping[_PortSide, float]:
        rates: dict[_PortSide, float] = {}
        for source, target in permutations(range(self.size), 2):
            link = self.link(source, target)
            rate = None if link is None else link.bytes_per_s
            for port in self.ports(source, target) if rate else ():
                rates[port] = max(rates.get(port, 0.0), rate or 0.0)
        return rates

    def ports(self, source: int, target: int) -> tuple[_PortSide, _PortSide]:
        return (self._port(source, target), "out"), (self._port(target, source), "in")

    def _port(self, rank: int, other: int) -> _Port:
        host = self.hosts[rank]
        return ("node", rank) if host == self.hosts[other] else ("host", host)


@dataclass(frozen=True, slots=True)
class ChosenCollective:
    collective: CollectiveName
    why: str


def choose(nbytes: int, facts: NetworkFacts) -> ChosenCollective:
    """Chooses the fastest collective. `nbytes` counts bytes per node, in the wire's precision."""
    known = {name: predict(name, nbytes, facts) for name in _CHOICES}
    seconds = {name: taken_s for name, taken_s in known.items() if taken_s is not None}
    near = [name for name, taken_s in seconds.items() if taken_s <= (1 + TIE) * min(seconds.values())]
    # Of two nodes, a mesh takes one latency and the fewest bytes and messages.
    chosen: CollectiveName = "mesh" if facts.size == 2 else near[0]
    apart = [pair for pair in combinations(range(facts.size), 2) if facts.link(*pair) is None]
    if facts.size == 1:
        why = "a single node sends nothing"
    elif facts.size == 2:
        why = "two nodes exchange their parts"
    elif apart:
        why = "all traffic goes through node 0: nodes {} and {} cannot reach each other".format(*apart[0])
    else:
        times = ", ".join(f"{name} {format_seconds(taken_s)}" for name, taken_s in seconds.items())
        why = f"predicted for {format_bytes(nbytes)}: {times}"
        why += f"; {chosen} is the simplest within {TIE:.0%} of the fastest" * (len(near) > 1)
    return ChosenCollective(chosen, why)


def predict(collective: CollectiveName, nbytes: int, facts: NetworkFacts) -> float | None:
    """Predicts an all-reduce's seconds. `nbytes` counts bytes per node, in the wire's precision. Returns None if a link
    is missing."""
    ready = [0.0] * facts.size
    message_s = facts.costs.message_s if collective in _NATIVE else facts.costs.stepwise_s
    for phase in phases(collective, facts.size):
        port_bytes, work_s = _loads(phase, nbytes, message_s, facts)
        after = list(ready)
        for source, target, part in phase:
            link = facts.link(source, target)
            if link is None:
                return None
            ports = facts.ports(source, target)
            busy_s = [port_bytes[port] / facts.port_rates.get(port, inf) for port in ports]
            transfer_s = max(nbytes * part / (link.bytes_per_s or inf), *busy_s)
            work = work_s[source, "out"] + work_s[target, "in"]
            left = ready[source] + (transfer_s + work + facts.costs.wake_s)  # then the sender goes on
            after[source] = max(after[source], left)
            after[target] = max(after[target], left + link.one_way_latency_s)
        ready = after
    return max(ready)


def _loads(
    phase: Sequence[Hop], nbytes: int, message_s: float, facts: NetworkFacts
) -> tuple[Mapping[_PortSide, float], Mapping[tuple[int, str], float]]:
    """Returns bytes through each port, and seconds of work of each rank."""
    port_bytes: defaultdict[_PortSide, float] = defaultdict(float)
    rank_s: defaultdict[tuple[int, str], float] = defaultdict(float)
    host_s: defaultdict[tuple[Host, str], float] = defaultdict(float)
    for source, target, part in phase:
        for port in facts.ports(source, target):
            port_bytes[port] += nbytes * part
        hop_s = message_s + nbytes * part * facts.costs.byte_s
        for rank, side in ((source, "out"), (target, "in")):
            rank_s[rank, side] += hop_s
            host_s[facts.hosts[rank], side] += hop_s
    for (rank, side), alone_s in rank_s.items():
        host = facts.hosts[rank]
        rank_s[rank, side] = max(alone_s, host_s[host, side] / facts.cores.get(host, 1))
    return port_bytes, rank_s


def are_linked(size: int, collective: CollectiveChoice) -> bool:
    """Whether every node has links to all others."""
    return size == 2 or collective != "star"


def connects_to(rank: int, size: int, collective: CollectiveChoice) -> range:
    return range(rank if are_linked(size, collective) else min(rank, 1))


def listens(rank: int, size: int, collective: CollectiveChoice) -> bool:
    return rank < size - 1 and (rank == 0 or are_linked(size, collective))
