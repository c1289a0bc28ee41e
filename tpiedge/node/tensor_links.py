"""A node's links on the tensor plane: where it listens, which nodes it connects to, and one endpoint for all of it."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from tpiedge.collectives.peer_channel import node_name
from tpiedge.transport.context import ZmqContext
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.mesh import ZmqMesh
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke

_IO_THREADS: Final = 2


class TensorLinks:
    """The links of the node `rank`. `peer_keys`: public keys by rank. What is opened is closed by `resources`."""

    def __init__(
        self, rank: int, keys: CurveKeys, peer_keys: Mapping[int, str], resources: ExitStack
    ) -> None:
        self._rank = rank
        self._keys = keys
        self._peer_keys = peer_keys
        self._resources = resources
        self._hub: ZmqHub | None = None
        self._context = ZmqContext(_IO_THREADS)
        resources.callback(self._context.close)

    def listen(self, address: str) -> ZmqHub:
        """For all nodes of higher rank."""
        self._hub = ZmqHub(
            address=address,
            keys=self._keys,
            name=node_name(self._rank),
            allowed={key: node_name(peer) for peer, key in self._peer_keys.items() if peer > self._rank},
            plane=TENSOR,
            context=self._context,
        )
        return self._resources.enter_context(self._hub)

    def connect(self, peer: int, address: str) -> ZmqSpoke:
        """To a node of lower rank. Raises UserError where that is no address here."""
        spoke = ZmqSpoke(
            address=address,
            server_key=self._peer_keys.get(peer, ""),
            keys=self._keys,
            name=node_name(self._rank),
            hub_name=node_name(peer),
            plane=TENSOR,
            context=self._context,
        )
        return self._resources.enter_context(spoke)

    def joined(self, spokes: Mapping[int, ZmqSpoke]) -> Endpoint:
        """One endpoint of where it listens, if it does, and of those of its `spokes` that are of use."""
        if self._hub is not None and not spokes:
            return self._hub
        if self._hub is None and len(spokes) == 1:
            (only,) = spokes.values()
            return only
        ends = {node_name(peer): spoke for peer, spoke in spokes.items()}
        return ZmqMesh(node_name(self._rank), self._hub, ends)
