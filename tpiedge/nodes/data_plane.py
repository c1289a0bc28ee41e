"""How a node joins the tensor plane of its epoch: it listens, learns where others do, connects, measures its links."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tpiedge.clock import Clock
from tpiedge.collectives.communicator import Communicator, Liveness
from tpiedge.collectives.courier import node_name
from tpiedge.collectives.group import Group
from tpiedge.collectives.local import LocalCommunicator
from tpiedge.errors import PeerLost, ProtocolError, UserError
from tpiedge.nodes.addresses import data_endpoint
from tpiedge.nodes.bootstrap import NodeBootstrap
from tpiedge.nodes.link_survey import LinkSurvey
from tpiedge.nodes.linking import are_linked, connects_to, listens
from tpiedge.planner.network import NetworkFacts
from tpiedge.transport.context import ZmqContext
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.mesh import ZmqMesh
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.control import Assign, Connect, Listening

__all__ = ["DataPlane", "DataPlaneJoin"]

_LINK_S: Final = 5.0
#: How many times as long as the master takes to find a machine that is cut off.
_PATIENCE: Final = 2
_IO_THREADS: Final = 2


@dataclass(frozen=True)
class DataPlane:
    """`facts`: what rank 0 knows of all links, where there is a choice between collectives."""

    communicator: Communicator
    endpoint: Endpoint | None = None
    facts: NetworkFacts | None = None


class _LinkLiveness:
    """A Liveness that also looks after the links between workers: the master, whom both reach, does not see them.

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
        monitor = self._monitors.get(rank)
        if monitor is None or monitor.poll() is LinkState.UP:
            self._broken.pop(rank, None)
        elif self._clock.now() - self._broken.setdefault(rank, self._clock.now()) >= self._patience_s:
            raise PeerLost(rank, waiting_for, "its connection broke")

    def check_idle(self, rank: int, waiting_for: str) -> None:
        self._liveness.check_idle(rank, waiting_for)


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
        self._keys = CurveKeys(bootstrap.public_key, bootstrap.secret_key)
        self._peer_keys = dict(assign.peer_keys)
        self._name = node_name(assign.rank)

    def run(self) -> DataPlane:
        """Raises PeerLost, ProtocolError, UserError."""
        assign = self._assign
        size = len(assign.nodes)
        if size == 1:
            return DataPlane(LocalCommunicator())
        context = ZmqContext(_IO_THREADS)
        self._resources.callback(context.close)
        hub = self._listen(context) if listens(assign.rank, size, assign.collective) else None
        spokes = self._connect(context) if assign.rank else {}
        endpoint = self._joined(hub, spokes)
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

    def _listen(self, context: ZmqContext) -> ZmqHub:
        rank = self._assign.rank
        hub = ZmqHub(
            address=self._bootstrap.data_address,
            keys=self._keys,
            name=self._name,
            allowed={key: node_name(peer) for peer, key in self._peer_keys.items() if peer > rank},
            plane=TENSOR,
            context=context,
        )
        self._resources.enter_context(hub)
        self._listening(Listening(self._assign.epoch, rank, hub.address))
        return hub

    def _connect(self, context: ZmqContext) -> dict[int, ZmqSpoke]:
        """Spokes to the ranks that listen for this node, as far as they can be reached; to rank 0 in any case."""
        assign = self._assign
        endpoints = dict(self._await_connect().endpoints)
        others = connects_to(assign.rank, len(assign.nodes), assign.collective)
        if endpoints.keys() != set(others):
            raise ProtocolError(
                f"the master sent the addresses of {sorted(endpoints)}, not of {list(others)}"
            )
        spokes = self._spokes(endpoints, context)
        deadline = self._clock.now() + _LINK_S
        for rank, spoke in list(spokes.items()):
            if spoke.monitor.wait(max(0.0, deadline - self._clock.now())) is LinkState.UP:
                continue
            if rank == 0:
                # Found here, or else by the first request, which would wait for long.
                port = spoke.address.rpartition(":")[2]
                cause = f"its port {port} for data cannot be reached: is it open in the firewall?"
                raise PeerLost(0, "connecting", cause)
            spoke.close()
            del spokes[rank]
        return spokes

    def _spokes(self, endpoints: Mapping[int, str], context: ZmqContext) -> dict[int, ZmqSpoke]:
        spokes = {}
        for rank, endpoint in endpoints.items():
            try:
                spokes[rank] = self._spoke(rank, endpoint, context)
            except UserError:
                if rank == 0:
                    raise
                # What another node calls its address is none here.
        return spokes

    def _spoke(self, rank: int, endpoint: str, context: ZmqContext) -> ZmqSpoke:
        spoke = ZmqSpoke(
            address=data_endpoint(endpoint, self._bootstrap.control_address),
            server_key=self._peer_keys.get(rank, ""),
            keys=self._keys,
            name=self._name,
            hub_name=node_name(rank),
            plane=TENSOR,
            context=context,
        )
        return self._resources.enter_context(spoke)

    def _joined(self, hub: ZmqHub | None, spokes: Mapping[int, ZmqSpoke]) -> Endpoint:
        if hub is not None and not spokes:
            return hub
        if hub is None and len(spokes) == 1:
            return spokes[0]
        return ZmqMesh(self._name, hub, {node_name(rank): spoke for rank, spoke in spokes.items()})
