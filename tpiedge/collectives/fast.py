"""All-reduces of the steady state, each in one call of the endpoint where it can (transport/native_reducer.py).

An all-reduce runs right after a wake-up, when every call of Python costs several times the usual. What the all-reduces
of one shape have in common is made once: the header that goes out, the headers that should come in.
"""

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.codec import AnyCodec, Shape
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.peer_channel import PeerChannel, node_name
from tpiedge.transport.native_reducer import DONE, Combine, Exchange, Reduce, Reduces
from tpiedge.wire.codec import PLACE_AT, PLACE_BYTES, encode, place_of
from tpiedge.wire.data import Partial, Reduced
from tpiedge.wire.fields import CollectiveName
from tpiedge.wire.tensors import TensorHeader

_Kind = tuple[CollectiveName, str, Shape]
_MOST_KINDS: Final = 8
# A rank without a share sends no part, at each all-reduce of a kind: a rank that expects one would leave off every
# time, which costs more than going step by step from the beginning.
_MOST_LEFT_OFF: Final = 3
_PAUSE: Final = 64
# Of f32 and of narrow integers. Wide ones are rare.
_ITEM_BYTES: Final = 4
_Byte = ctypes.c_char


@dataclass(slots=True)
class _Backoff:
    """Pauses the calls of a kind that keep leaving off."""

    #: How many calls in a row have left off.
    left_off: int = 0
    #: So many all-reduces go step by step before the next call.
    pause: int = 0

    def is_due(self) -> bool:
        """Whether to call; asked once for every all-reduce."""
        if self.pause:
            self.pause -= 1
            return False
        return True

    def leave_off(self) -> None:
        self.left_off += 1
        if self.left_off >= _MOST_LEFT_OFF:
            self.pause = _PAUSE


@dataclass(frozen=True, slots=True)
class _Prepared:
    reduce: Reduce
    #: The sum, once the root of a star has begun to send it.
    scratch: bytearray
    #: With attention (even blocks), with the FFN (odd ones): a rank may have a share of the latter alone.
    backoff: tuple[_Backoff, _Backoff]


class FastPath:
    """For one rank. What it cannot do it leaves to the collective, which goes on from there."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel
        #: The one used last comes last.
        self._prepared: dict[_Kind, _Prepared | None] = {}

    def reduce(
        self, name: CollectiveName, codec: AnyCodec, own: Summable, tag: Tag
    ) -> tuple[int, Summable | None]:
        """To how many peers this rank's first message went, and the sum: `own`, in place, where all is done; None, or
        (at the root of a star) the sum that these peers have, not rounded yet, where the caller is to go on."""
        if own.itemsize != _ITEM_BYTES:
            return 0, None
        prepared = self._prepare((name, codec.name, own.shape), codec, own)
        if prepared is None:
            return 0, None
        backoff = prepared.backoff[tag.block & 1]
        if not backoff.is_due():
            return 0, None
        # Half the time of `own.ctypes.data`.
        address = ctypes.addressof(_Byte.from_buffer(own))  # type: ignore[arg-type]
        sent = prepared.reduce(place_of(tag.step, tag.block, tag.chunk), address)
        if sent == DONE:
            backoff.left_off = 0
            return 0, own
        backoff.leave_off()
        if sent and name == "star" and self._channel.rank == 0:
            return sent, np.frombuffer(prepared.scratch, own.dtype).reshape(own.shape).copy()
        return sent, None

    def _prepare(self, kind: _Kind, codec: AnyCodec, own: Summable) -> _Prepared | None:
        kinds = self._prepared
        if kind in kinds:
            prepared = kinds.pop(kind)
        else:
            if len(kinds) >= _MOST_KINDS:
                del kinds[next(iter(kinds))]
            prepared = self._made(kind[0], codec, own)
        kinds[kind] = prepared
        return prepared

    def _made(self, name: CollectiveName, codec: AnyCodec, own: Summable) -> _Prepared | None:
        endpoint = self._channel.endpoint
        if not isinstance(endpoint, Reduces) or name not in ("star", "mesh"):
            return None
        header = codec.header(own)
        rank = self._channel.rank
        if name == "mesh":
            combine, outgoing, peers = Combine.EXCHANGE, self._partial(rank, header), self._channel.peers
            incoming = {peer: self._partial(peer, header) for peer in peers}
        elif rank == 0:
            combine, outgoing = Combine.SUM, self._reduced(header)
            incoming = {peer: self._partial(peer, header) for peer in self._channel.peers}
        else:
            combine, outgoing = Combine.TAKE, self._partial(rank, header)
            incoming = {0: self._reduced(header)}
        answers = {node_name(peer): message for peer, message in incoming.items()}
        rows, columns = own.shape
        scratch = bytearray(own.nbytes)
        exchange = Exchange(
            combine, rank, codec.name, (rows, columns), outgoing, answers, PLACE_AT, PLACE_BYTES, scratch
        )
        reduce = endpoint.reducer(exchange)
        return None if reduce is None else _Prepared(reduce, scratch, (_Backoff(), _Backoff()))

    def _partial(self, sender: int, header: TensorHeader) -> bytes:
        return encode(Partial(self._channel.epoch, 0, 0, 0, 0, sender, header))

    def _reduced(self, header: TensorHeader) -> bytes:
        return encode(Reduced(self._channel.epoch, 0, 0, 0, 0, header))
