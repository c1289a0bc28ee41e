"""What every collective of one rank sends and receives through."""

from collections.abc import Iterable, Sequence
from typing import Final

from tpiedge.collectives.communicator import Doing, Liveness
from tpiedge.collectives.inbox import Inbox
from tpiedge.transport.endpoint import Buffer, Endpoint, Unreachable
from tpiedge.transport.framing import TENSOR, frame_of
from tpiedge.wire.messages import Message


def node_name(rank: int) -> str:
    """The transport's name of a rank."""
    return f"node-{rank}"


class PeerChannel:
    """One rank of one epoch, among `size`. `endpoint` stays the caller's, who closes it."""

    def __init__(self, endpoint: Endpoint, liveness: Liveness, *, epoch: int, rank: int, size: int) -> None:
        self.rank: Final = rank
        self.size: Final = size
        self.epoch: Final = epoch
        self.endpoint: Final = endpoint
        self.peers: Final = tuple(peer for peer in range(size) if peer != rank)
        self._liveness = liveness
        self.inbox: Final = Inbox(endpoint, {node_name(peer): peer for peer in self.peers}, epoch, liveness)

    def send(
        self, message: Message, tensors: Sequence[Buffer], ranks: Iterable[int], what: Doing, sent: int = 0
    ) -> None:
        """To each of `ranks` in this order, but for the first `sent`. Raises PeerLost, ProtocolError."""
        waiting = list(ranks)[sent:]
        if not waiting:
            return
        frame = frame_of(message, tensors, TENSOR)
        names = [node_name(rank) for rank in waiting]
        while names:
            try:
                self.endpoint.send_frame(frame, names, 0.05)
                return
            except Unreachable as error:
                done = names.index(error.peer)
                self._liveness.check(waiting[done], str(what))
                # Those before it have the message.
                names, waiting = names[done:], waiting[done:]
