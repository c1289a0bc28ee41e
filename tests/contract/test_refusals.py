import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from tests.contract.between import Change, Changing
from tests.contract.ranks import HUB, LINKS, TAG, Ranks, part
from tpiedge.collectives.peer_channel import MAX_HELD, MAX_HELD_BYTES
from tpiedge.errors import Misconduct
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.codec import encode
from tpiedge.wire.control import Shutdown
from tpiedge.wire.fields import MAX_TENSOR_BYTES, TensorHeader

SIZE = 3
FOUND_OUT_S = 15.0
#: Of what may be held of a rank.
HALF = TensorHeader("u8", (MAX_HELD_BYTES // 2,))


def frame(envelope: Envelope, **changes: Any) -> bytes:
    message: Any = structs.replace(envelope.message, **changes)
    return encode(message) + (envelope.tensor or b"")


def header(envelope: Envelope) -> TensorHeader:
    return envelope.message.tensor  # type: ignore[union-attr]


def nbytes(envelope: Envelope) -> int:
    return header(envelope).nbytes


@dataclass(frozen=True)
class Violation:
    """`words`: of the complaint. `malformed`: whether the endpoint itself refuses the frame, and counts that."""

    change: Change
    words: str
    malformed: bool = False


def malformed(change: Change) -> Violation:
    return Violation(change, "malformed", True)


def misshapen(make: Callable[[int], TensorHeader]) -> Violation:
    return Violation(lambda sent: [frame(sent, tensor=make(nbytes(sent)))], "node . sent .* where")


VIOLATIONS = {
    "truncated": malformed(lambda sent: [frame(sent)[:-4]]),
    "half a header": malformed(lambda sent: [frame(sent)[:20]]),
    "no tensor": malformed(lambda sent: [frame(sent)[: -nbytes(sent)]]),
    "too long": malformed(lambda sent: [frame(sent) + bytes(4)]),
    "a tensor that is not announced": malformed(lambda sent: [frame(sent, tensor=None)]),
    "more announced than allowed": malformed(
        lambda sent: [frame(sent, tensor=TensorHeader("f32", (MAX_TENSOR_BYTES, 1)))]
    ),
    "junk": malformed(lambda sent: [bytes(range(256))]),
    "one column": misshapen(lambda count: TensorHeader("f32", (count // 4, 1))),
    "no matrix": misshapen(lambda count: TensorHeader("f32", (count // 4,))),
    "bytes": misshapen(lambda count: TensorHeader("u8", (count,))),
    "another precision": misshapen(lambda count: TensorHeader("bf16", (2, count // 4))),
    "the largest": Violation(
        lambda sent: [
            encode(
                structs.replace(sent.message, tensor=TensorHeader("f32", (MAX_TENSOR_BYTES >> 14, 1 << 12)))
            )  # type: ignore[type-var, arg-type]
            + bytes(MAX_TENSOR_BYTES)
        ],
        "node . sent .* where",
    ),
    "another's name": Violation(lambda sent: [frame(sent, sender=2)], "node . speaks for another node"),
    "a control message": Violation(
        lambda sent: [encode(Shutdown(1))], "node . sent Shutdown on the tensor plane"
    ),
    "twice": Violation(lambda sent: [frame(sent, block=9)] * 2, "node . sent .* twice"),
    "far ahead": Violation(
        lambda sent: [frame(sent, block=block) for block in range(1, MAX_HELD + 2)], "node . is too far ahead"
    ),
    "far ahead in bytes": Violation(
        lambda sent: [
            encode(structs.replace(sent.message, block=block, tensor=HALF)) + bytes(HALF.nbytes)  # type: ignore[type-var, arg-type]
            for block in range(1, 4)
        ],
        "node . is too far ahead: 3 messages",
    ),
}


OF_PARTS = ("another's name", "a tensor that is not announced")
"""Only a part has a sender, and may come without a tensor."""


class Once:
    """Changes the first message with numbers that a rank sends."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._done = False

    def __call__(self, envelope: Envelope) -> Sequence[bytes]:
        if self._done or not nbytes(envelope):
            return [frame(envelope)]
        self._done = True
        return self._change(envelope)


def check(network: Any, way: str, faulty: int, violation: Violation) -> None:
    ranks = Ranks(network, way, SIZE, wrap=lambda rank, one: Changing(one) if rank == faulty else one)
    ranks.begun()
    ranks.endpoints[faulty].change = Once(violation.change)
    before = [endpoint.counters.refused for endpoint in ranks.bare]
    started = time.monotonic()
    outcomes = ranks.outcomes(lambda one: one.all_reduce(part(one.rank), TAG))
    assert time.monotonic() - started < FOUND_OUT_S
    complaints = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Misconduct)}
    assert complaints, outcomes
    for complaint in complaints.values():
        assert complaint.rank == faulty
        assert re.search(violation.words, str(complaint))
    for rank, endpoint in enumerate(ranks.bare):
        counted = endpoint.counters.refused - before[rank]
        assert counted == (rank in complaints and violation.malformed)


#: Every violation over queues, where all collectives read a message alike; every collective and kind of links for some.
TRIED = [
    *(("inprocess", way, name) for way in (HUB, "mesh") for name in VIOLATIONS),
    *((*link, name) for link in LINKS for name in ("truncated", "one column", "twice")),
]
tried = pytest.mark.parametrize(
    ("network", "way", "violation"), list(dict.fromkeys(TRIED)), indirect=["network"]
)


@pytest.mark.fault("W2", "every collective names the node that sent it")
@pytest.mark.fault("W11", "every collective names the sender of a wrong shape")
@tried
def test_a_rank_that_breaks_the_protocol_is_named(network: Any, way: str, violation: str) -> None:
    check(network, way, 1, VIOLATIONS[violation])


@tried
def test_rank_0_that_breaks_the_protocol_is_named(network: Any, way: str, violation: str) -> None:
    if violation not in OF_PARTS:
        check(network, way, 0, VIOLATIONS[violation])
