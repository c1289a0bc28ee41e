"""Joins the tensor plane of an epoch: listens, connects, measures links, and chooses collectives."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tpiedge.clock import Clock
from tpiedge.collectives.communicator import Communicator, Route
from tpiedge.collectives.group import Group
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import PeerLost, ProtocolError, UserError
from tpiedge.host.addresses import check_endpoint, data_endpoint
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.node.control_link import ClusterLiveness
from tpiedge.node.link_survey import LinkSurvey
from tpiedge.planner.network import NetworkFacts, are_linked, choose, connects_to, listens
from tpiedge.transport.admission import ZmqContext
from tpiedge.transport.endpoint import TENSOR, Endpoint
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.mesh import ZmqMesh
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.control import Assign, Connect, Listening, WorkerLink
from tpiedge.wire.fields import MAX_ARRAY, CollectiveChoice, WirePrecision, wire_bytes


def route(
    wanted: CollectiveChoice,
    size: int,
    facts: NetworkFacts | None,
    row_bytes: int,
    chunk_bytes: int,
    wire: WirePrecision,
) -> tuple[Route, str]:
    """Chooses the collectives of small and large all-reduces. Returns (route, reason). `row_bytes`, `chunk_bytes`: the
    f32 bytes of one token and of the largest chunk."""
    if wanted == "auto" and size == 2:
        return Route(
            "mesh", "mesh", 0, wire
        ), "two nodes send each other their parts, which takes one network delay"
    if wanted == "auto" and facts is not None:
        small = choose(wire_bytes(wire, 1, row_bytes // 4), facts)
        bulk = choose(wire_bytes(wire, 1, chunk_bytes // 4), facts)
        most = row_bytes
        while 2 * most < chunk_bytes and (
            choose(wire_bytes(wire, 1, most // 2), facts).collective == small.collective
        ):
            most *= 2
        return Route(small.collective, bulk.collective, most, wire), small.why
    name, why = "star" if wanted == "auto" else wanted, ""
    if facts is not None and name != "star":
        # A node that lacks a link takes part in the star alone.
        pairs = combinations(range(facts.size), 2)
        cut = [f"nodes {low} and {high}" for low, high in pairs if facts.link(low, high) is None]
        if cut:
            name, why = "star", f"{wanted} is not possible: {', '.join(cut[:3])} cannot reach each other"
    return Route(name, name, 0, wire), why


def worker_links(facts: NetworkFacts | None) -> tuple[WorkerLink, ...]:
    """Returns the links between workers, slowest first, at most MAX_ARRAY links."""
    found = facts.round_trips_s.items() if facts is not None else ()
    links = [WorkerLink(low, high, trip_s) for (low, high), trip_s in found if low > 0]
    return tuple(sorted(links, key=lambda link: (-link.round_trip_s, link.low, link.high))[:MAX_ARRAY])


@dataclass(eq=False)
class TensorLinks:
    """Opens the tensor links of one node. `_resources` closes them."""

    _rank: int
    _keys: CurveKeys
    _peer_keys: Mapping[int, str]
    _resources: ExitStack
    _hub: ZmqHub | None = None

    def __post_init__(self) -> None:
        self._context = ZmqContext(io_threads=2)
        self._resources.callback(self._context.close)

    def listen(self, address: str) -> ZmqHub:
        allowed = {key: node_name(peer) for peer, key in self._peer_keys.items() if peer > self._rank}
        own = node_name(self._rank)
        self._hub = ZmqHub(address, self._keys, own, allowed, plane=TENSOR, context=self._context)
        return self._resources.enter_context(self._hub)

    def connect(self, peer: int, address: str) -> ZmqSpoke:
        """Starts to connect to a peer. Raises UserError for an unusable address."""
        key, own, other = self._peer_keys.get(peer, ""), node_name(self._rank), node_name(peer)
        spoke = ZmqSpoke(address, key, self._keys, own, hub_name=other, plane=TENSOR, context=self._context)
        return self._resources.enter_context(spoke)

    def joined(self, spokes: Mapping[int, ZmqSpoke]) -> Endpoint:
        named = {node_name(peer): spoke for peer, spoke in spokes.items()}
        return ZmqMesh(node_name(self._rank), self._hub, named)


_LINK_S: Final = 5.0
#: Four of libzmq's attempts of 3 s, each of which fails if two packets in a row are lost.
_RANK_0_LINK_S: Final = 15.0
_SLICE_S: Final = 0.1
_TIMEOUTS: Final = 2  # a link may be broken for so many timeouts of the master


@dataclass(frozen=True)
class DataPlane:
    """A joined tensor plane. Only rank 0 has `facts` about all links."""

    communicator: Communicator
    endpoint: Endpoint | None = None
    facts: NetworkFacts | None = None

    @property
    def traffic(self) -> tuple[int, int, int, int]:
        """The counts (bytes sent, bytes received, late messages, refusals). Any thread may read them."""
        group = self.communicator
        if self.endpoint is None or not isinstance(group, Group):
            return 0, 0, 0, 0
        counters = self.endpoint.counters
        return counters.bytes_sent, counters.bytes_received, group.dropped, counters.refused


def join_data_plane(
    assign: Assign,
    bootstrap: NodeBootstrap,
    liveness: ClusterLiveness,
    clock: Clock,
    listening: Callable[[Listening], None],
    await_connect: Callable[[], Connect],
    resources: ExitStack,
) -> DataPlane:
    """Joins the tensor plane. `listening` gets this node's address. `await_connect` returns the other nodes' addresses.
    Raises PeerLost, ProtocolError, UserError."""
    size = len(assign.nodes)
    if size == 1:
        return DataPlane(Communicator())
    links = TensorLinks(assign.rank, bootstrap.keys, dict(assign.peer_keys), resources)
    if listens(assign.rank, size, assign.collective):
        hub = links.listen(bootstrap.data_address)
        listening(Listening(assign.epoch, assign.rank, hub.address))
    spokes: dict[int, ZmqSpoke] = {}
    if assign.rank:
        spokes = _connect(links, assign, await_connect(), bootstrap.control_address)
        _drop_broken(spokes, liveness, clock)
    endpoint = links.joined(spokes)
    linked = are_linked(size, assign.collective)
    facts = None
    if linked and size > 2:
        facts = LinkSurvey(endpoint, liveness, clock, assign.epoch, assign.rank, size).run(spokes)
        linked = len(spokes) == assign.rank
    monitors = {rank: spoke.monitor for rank, spoke in spokes.items() if rank}
    liveness.watch(monitors, _TIMEOUTS * bootstrap.timing.timeout_s)
    group = Group(endpoint, liveness, epoch=assign.epoch, rank=assign.rank, size=size, linked=linked)
    return DataPlane(group, endpoint, facts)


def _connect(
    links: TensorLinks, assign: Assign, connect: Connect, control_address: str
) -> dict[int, ZmqSpoke]:
    endpoints = dict(connect.endpoints)
    others = connects_to(assign.rank, len(assign.nodes), assign.collective)
    if endpoints.keys() != set(others):
        raise ProtocolError(f"the master sent the addresses of {sorted(endpoints)}, not of {list(others)}")
    spokes = {}
    for rank, endpoint in endpoints.items():
        check_endpoint(endpoint, f"the master says that node {rank} listens")
        try:
            spokes[rank] = links.connect(rank, data_endpoint(endpoint, control_address))
        except UserError:  # another node's address may have no route from here
            if rank == 0:
                raise
    return spokes


def _drop_broken(spokes: dict[int, ZmqSpoke], liveness: ClusterLiveness, clock: Clock) -> None:
    """Waits for the links, and drops those that fail. Raises PeerLost."""
    started = clock.now()
    for rank, spoke in list(spokes.items()):
        deadline = started + (_LINK_S if rank else _RANK_0_LINK_S)
        # The link's events are read before the clock: another link may have taken all the time.
        while spoke.monitor.wait(_SLICE_S) is not LinkState.UP and not spoke.monitor.is_final:
            if clock.now() >= deadline:
                break
            liveness.check(rank, "connecting")  # the master may tell of a loss meanwhile
        if spoke.monitor.state is LinkState.UP:
            continue
        if rank == 0:
            port = spoke.address.rpartition(":")[2]
            cause = f"its port {port} for data cannot be reached: is it open in the firewall?"
            raise PeerLost(0, "connecting", cause)
        spoke.close()
        del spokes[rank]
