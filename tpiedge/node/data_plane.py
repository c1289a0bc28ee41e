"""How a node joins the tensor plane of its epoch: it listens, learns where others do, connects, measures its links."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tpiedge.clock import Clock
from tpiedge.collectives.communicator import Communicator, Liveness
from tpiedge.collectives.group import Group
from tpiedge.collectives.local import LocalCommunicator
from tpiedge.errors import PeerLost, ProtocolError, UserError
from tpiedge.host.addresses import check_endpoint, data_endpoint
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.node.link_survey import LinkSurvey
from tpiedge.node.tensor_links import TensorLinks
from tpiedge.planner.linking import are_linked, connects_to, listens
from tpiedge.planner.network import NetworkFacts
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.control import Assign, Connect, Listening

_LINK_S: Final = 5.0
#: Without a link to rank 0 nothing goes. An attempt of libzmq to connect lasts 3 s, and fails where the network loses
#: two packets of it in a row; this is time for four. (Two handshakes that fail are taken for a wrong address.)
_RANK_0_LINK_S: Final = 15.0
_SLICE_S: Final = 0.1
#: How many times as long as the master takes to find a machine that is cut off.
_PATIENCE: Final = 2


@dataclass(frozen=True)
class DataPlaneTraffic:
    """What has passed. `dropped`: messages that came too late; `refused`: messages and connections that no honest node
    makes."""

    sent_bytes: int = 0
    received_bytes: int = 0
    dropped: int = 0
    refused: int = 0


@dataclass(frozen=True)
class DataPlane:
    """`facts`: what rank 0 knows of all links, where there is a choice between collectives."""

    communicator: Communicator
    endpoint: Endpoint | None = None
    facts: NetworkFacts | None = None

    @property
    def traffic(self) -> DataPlaneTraffic:
        """Until now. For any thread."""
        if self.endpoint is None:
            return DataPlaneTraffic()
        counters, group = self.endpoint.counters, self.communicator
        refused = (
            counters.rejected + counters.impostor + counters.revoked + counters.duplicate + counters.malformed
        )
        dropped = group.dropped if isinstance(group, Group) else 0
        return DataPlaneTraffic(self.endpoint.bytes_sent, self.endpoint.bytes_received, dropped, refused)


class _LinkLiveness:
    """A Liveness that also looks after the links between workers: the master, which both reach, does not see them.

    A link may be broken for `patience_s` first: the master's word on whose machine is cut off says more.
    """

    def __init__(
        self, liveness: Liveness, spokes: Mapping[int, ZmqSpoke], clock: Clock, patience_s: float
    ) -> None:
        self._liveness = liveness
        self._monitors = {rank: spoke.monitor for rank, spoke in spokes.items() if rank}
        self._clock = clock
        self._patience_s = patience_s
        self._broken: dict[int, float] = {}

    def check(self, rank: int, waiting_for: str) -> None:
        self._liveness.check(rank, waiting_for)
        self._check_link(rank, waiting_for)

    def check_idle(self, rank: int, waiting_for: str) -> None:
        """A link that breaks while there is nothing to do is found before the next request needs it."""
        self._liveness.check_idle(rank, waiting_for)
        self._check_link(rank, waiting_for)

    def _check_link(self, rank: int, waiting_for: str) -> None:
        if rank not in self._monitors:
            return
        if self._monitors[rank].poll() is LinkState.UP:
            self._broken.pop(rank, None)
        elif self._clock.now() - self._broken.setdefault(rank, self._clock.now()) >= self._patience_s:
            raise PeerLost(rank, waiting_for, "its connection broke")


class DataPlaneJoin:
    """One node's. `listening` tells the master where this node listens, `await_connect` waits for the master's word.
    What is opened is closed by `resources`."""

    def __init__(
        self,
        assign: Assign,
        bootstrap: NodeBootstrap,
        liveness: Liveness,
        clock: Clock,
        listening: Callable[[Listening], None],
        await_connect: Callable[[], Connect],
        resources: ExitStack,
    ) -> None:
        self._assign = assign
        self._bootstrap = bootstrap
        self._liveness = liveness
        self._clock = clock
        self._listening = listening
        self._await_connect = await_connect
        self._resources = resources

    def run(self) -> DataPlane:
        """Raises PeerLost, ProtocolError, UserError."""
        assign = self._assign
        size = len(assign.nodes)
        if size == 1:
            return DataPlane(LocalCommunicator())
        keys = CurveKeys(self._bootstrap.public_key, self._bootstrap.secret_key)
        links = TensorLinks(assign.rank, keys, dict(assign.peer_keys), self._resources)
        if listens(assign.rank, size, assign.collective):
            hub = links.listen(self._bootstrap.data_address)
            self._listening(Listening(assign.epoch, assign.rank, hub.address))
        spokes = self._connect(links) if assign.rank else {}
        endpoint = links.joined(spokes)
        linked = are_linked(size, assign.collective)
        facts = None
        if linked and size > 2:
            survey = LinkSurvey(endpoint, self._liveness, self._clock, assign.epoch, assign.rank, size)
            facts = survey.run(spokes)
            linked = len(spokes) == assign.rank
        patience_s = _PATIENCE * self._bootstrap.timeout_s
        liveness = _LinkLiveness(self._liveness, spokes, self._clock, patience_s)
        group = Group(endpoint, liveness, epoch=assign.epoch, rank=assign.rank, size=size, linked=linked)
        return DataPlane(group, endpoint, facts)

    def _connect(self, links: TensorLinks) -> dict[int, ZmqSpoke]:
        """Spokes to those ranks that listen for this node and can be reached. Raises PeerLost where rank 0 cannot, and
        ProtocolError where the master's word is no address."""
        assign = self._assign
        endpoints = dict(self._await_connect().endpoints)
        others = connects_to(assign.rank, len(assign.nodes), assign.collective)
        if endpoints.keys() != set(others):
            raise ProtocolError(
                f"the master sent the addresses of {sorted(endpoints)}, not of {list(others)}"
            )
        spokes = self._spokes(endpoints, links)
        started = self._clock.now()
        for rank, spoke in list(spokes.items()):
            if self._is_up(rank, spoke, started + (_LINK_S if rank else _RANK_0_LINK_S)):
                continue
            if rank == 0:
                # Found here, or else by the first request, which would wait for long.
                port = spoke.address.rpartition(":")[2]
                cause = f"its port {port} for data cannot be reached: is it open in the firewall?"
                raise PeerLost(0, "connecting", cause)
            spoke.close()
            del spokes[rank]
        return spokes

    def _is_up(self, rank: int, spoke: ZmqSpoke, deadline: float) -> bool:
        """Once that is certain, or at the deadline. Raises PeerLost when the master tells of a loss meanwhile."""
        # Its events are read before the clock: another link may have taken all the time.
        while spoke.monitor.wait(_SLICE_S) is not LinkState.UP and not spoke.monitor.settled:
            if self._clock.now() >= deadline:
                return False
            self._liveness.check(rank, "connecting")
        return spoke.monitor.state is LinkState.UP

    def _spokes(self, endpoints: Mapping[int, str], links: TensorLinks) -> dict[int, ZmqSpoke]:
        spokes = {}
        for rank, endpoint in endpoints.items():
            check_endpoint(endpoint, f"the master says that node {rank} listens")
            try:
                address = data_endpoint(endpoint, self._bootstrap.control_address)
                spokes[rank] = links.connect(rank, address)
            except UserError:
                if rank == 0:
                    raise
                # What another node calls its address is none here.
        return spokes
