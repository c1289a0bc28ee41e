"""Does all-reduces of f32 or int32 by star or mesh, each in one native call."""

import ctypes
import functools
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tpiedge.collectives.codec import Shape, header_of
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.peer_channel import PeerChannel, node_name
from tpiedge.collectives.summation import Summable
from tpiedge.transport.native_reducer import DONE, Combine, Exchange, Reduce
from tpiedge.wire.codec import PLACE, encode
from tpiedge.wire.data import Partial, Reduced
from tpiedge.wire.fields import CollectiveName, SummandPrecision

# A rank without a share of a kind never sends such a part: leaving off every time costs more than single steps.
_MOST_LEFT_OFF: Final = 3
_PAUSE: Final = 64
# f32 and narrow integers; wide ones are rare.
_ITEM_BYTES: Final = 4
_Byte = ctypes.c_char


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A prepared native call. Each list has a count for even blocks (attention) and one for odd blocks (FFN)."""

    reduce: Reduce
    #: The sum, once a star's root has begun to send it.
    scratch: bytearray
    left_off: list[int] = field(default_factory=lambda: [0, 0])  # calls in a row that stopped early
    #: All-reduces to do step by step before the next call.
    pause: list[int] = field(default_factory=lambda: [0, 0])


class FastPath:
    """Tries one rank's all-reduces in native calls. If a call stops early, Python code (direct.py) continues."""

    def __init__(self, channel: PeerChannel) -> None:
        self._rank = channel.rank
        self._prepared = functools.lru_cache(8)(functools.partial(_prepare, channel))

    def reduce(
        self, name: CollectiveName, wire: SummandPrecision, own: Summable, tag: Tag
    ) -> tuple[int, Summable | None]:
        """Sums into `own`. Returns (count, sum). A complete sum gives (0, `own`). Otherwise, the count is the number of
        peers with this rank's first message. The sum is then None, or the unrounded sum of a star's rank 0."""
        if own.itemsize != _ITEM_BYTES:
            return 0, None
        prepared = self._prepared(name, wire, own.shape)
        if prepared is None:
            return 0, None
        kind = tag.block & 1
        if prepared.pause[kind]:
            prepared.pause[kind] -= 1
            return 0, None
        # Takes half the time of `own.ctypes.data`.
        address = ctypes.addressof(_Byte.from_buffer(own))  # type: ignore[arg-type]
        sent = prepared.reduce(PLACE.pack(*tag), address)
        if sent == DONE:
            prepared.left_off[kind] = 0
            return 0, own
        prepared.left_off[kind] += 1
        if prepared.left_off[kind] >= _MOST_LEFT_OFF:
            prepared.pause[kind] = _PAUSE
        if sent and name == "star" and self._rank == 0:
            return sent, np.frombuffer(prepared.scratch, own.dtype).reshape(own.shape).copy()
        return sent, None


def _prepare(
    channel: PeerChannel, name: CollectiveName, wire: SummandPrecision, shape: Shape
) -> _Prepared | None:
    endpoint, rank, peers = channel.endpoint, channel.rank, channel.peers
    if name not in ("star", "mesh"):
        return None
    header = header_of(wire, shape)
    parts = {
        sender: encode(Partial(channel.epoch, *Tag(0, 0, 0), 0, sender, header)) for sender in (rank, *peers)
    }
    total = encode(Reduced(channel.epoch, *Tag(0, 0, 0), 0, header))
    if name == "mesh":
        combine, outgoing, incoming = Combine.EXCHANGE, parts[rank], {peer: parts[peer] for peer in peers}
    elif rank == 0:
        combine, outgoing, incoming = Combine.SUM, total, {peer: parts[peer] for peer in peers}
    else:
        combine, outgoing, incoming = Combine.TAKE, parts[rank], {0: total}
    answers = {node_name(peer): message for peer, message in incoming.items()}
    rows, columns = shape
    scratch = bytearray(_ITEM_BYTES * rows * columns)
    reduce = endpoint.reducer(Exchange(combine, rank, wire, (rows, columns), outgoing, answers, scratch))
    return None if reduce is None else _Prepared(reduce, scratch)
