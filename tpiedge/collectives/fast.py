"""All-reduces of the steady state, each in one call of the endpoint where it can (transport/reduction.py).

An all-reduce runs right after a wake-up, when every call of Python costs several times the usual. What the all-reduces
of one shape have in common is made once: the header that goes out, the headers that should come in.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.collectives.codec import Codec, Shape
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.courier import Courier, node_name
from tpiedge.transport.reduction import DONE, Combine, Exchange, Reduce, Reduces
from tpiedge.wire.data import Partial, Reduced
from tpiedge.wire.fields import Collective
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.stencil import PLACE_AT, PLACE_BYTES, Stencil, place_of
from tpiedge.wire.tensors import TensorHeader

__all__ = ["FastPath"]

_Kind = tuple[Collective, str, Shape]
_MOST_KINDS: Final = 8


@dataclass(frozen=True, slots=True)
class _Prepared:
    reduce: Reduce
    #: A frame whose tensor is the sum once the root of a star has begun to send it.
    scratch: bytearray


class FastPath:
    """For one rank. What it cannot do it leaves to the collective, which goes on from there."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._prepared: dict[_Kind, _Prepared | None] = {}

    def reduce(self, name: Collective, codec: Codec, own: Array, tag: Tag) -> tuple[int, Array | None]:
        """To how many peers this rank's first message went, and the sum: `own`, in place, where all is done; None, or
        (at the root of a star) the sum that these peers have, where the caller is to go on."""
        prepared = self._prepare((name, codec.name, own.shape), codec)
        if prepared is None:
            return 0, None
        sent = prepared.reduce(place_of(tag.step, tag.block, tag.chunk), own.ctypes.data)
        if sent == DONE:
            return 0, own
        if sent and name == "star" and self._courier.rank == 0:
            return sent, np.ndarray(own.shape, np.float32, prepared.scratch, FLAT_BYTES).copy()
        return sent, None

    def _prepare(self, kind: _Kind, codec: Codec) -> _Prepared | None:
        if kind not in self._prepared:
            if len(self._prepared) >= _MOST_KINDS:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[kind] = self._made(kind[0], codec, kind[2])
        return self._prepared[kind]

    def _made(self, name: Collective, codec: Codec, shape: Shape) -> _Prepared | None:
        endpoint = self._courier.endpoint
        if not isinstance(endpoint, Reduces) or name not in ("star", "mesh") or not codec.exact:
            return None
        header = codec.header(shape)
        scratch = bytearray(FLAT_BYTES + header.nbytes)
        rank = self._courier.rank
        if name == "mesh":
            combine, outgoing, peers = Combine.EXCHANGE, self._partial(rank, header), self._courier.peers
            incoming = {peer: self._partial(peer, header) for peer in peers}
        elif rank == 0:
            combine, outgoing = Combine.SUM, self._reduced(header)
            incoming = {peer: self._partial(peer, header) for peer in self._courier.peers}
        else:
            combine, outgoing, incoming = (
                Combine.TAKE,
                self._partial(rank, header),
                {0: self._reduced(header)},
            )
        answers = {node_name(peer): message for peer, message in incoming.items()}
        exchange = Exchange(combine, rank, outgoing, answers, PLACE_AT, PLACE_BYTES, scratch)
        reduce = endpoint.reducer(exchange)
        return None if reduce is None else _Prepared(reduce, scratch)

    def _partial(self, sender: int, header: TensorHeader) -> bytes:
        return Stencil(Partial(self._courier.epoch, 0, 0, 0, 0, sender, header)).at(0, 0, 0)

    def _reduced(self, header: TensorHeader) -> bytes:
        return Stencil(Reduced(self._courier.epoch, 0, 0, 0, 0, header)).at(0, 0, 0)
