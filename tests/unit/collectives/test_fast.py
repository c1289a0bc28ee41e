from typing import Any

import numpy as np

from tpiedge.collectives import fast
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.fast import FastPath
from tpiedge.transport.native_reducer import DONE, Exchange, Reduce


class Endpoint:
    def __init__(self) -> None:
        self.outcome = DONE
        self.calls = 0
        #: The rows of each shape, in the order in which they were prepared.
        self.made: list[int] = []

    def reducer(self, exchange: Exchange) -> Reduce:
        self.made.append(exchange.shape[0])
        return self._reduce

    def _reduce(self, _place: bytes, _tensor: int) -> int:
        self.calls += 1
        return self.outcome


class Rank:
    def __init__(self) -> None:
        self.endpoint = Endpoint()
        self.rank, self.peers, self.epoch = 1, (0,), 1
        channel: Any = self
        self._fast = FastPath(channel)

    def calls(self, count: int, rows: int = 1, block: int = 0) -> int:
        before = self.endpoint.calls
        own = np.zeros((rows, 4), np.float32)
        for _ in range(count):
            _, total = self._fast.reduce("star", "f32", own, Tag(1, block, 0))
            assert (total is own) == (self.endpoint.calls > before and self.endpoint.outcome == DONE)
        return self.endpoint.calls - before


def test_fast_path_pauses_after_repeated_incomplete_calls() -> None:
    rank = Rank()
    rank.endpoint.outcome = 0
    assert rank.calls(fast._MOST_LEFT_OFF + fast._PAUSE) == fast._MOST_LEFT_OFF
    # Once is enough to see that nothing has changed.
    assert rank.calls(1 + fast._PAUSE) == 1
    # Another kind is another matter.
    assert rank.calls(1, rows=2) == 1


def test_incomplete_attention_reduces_do_not_pause_the_ffn() -> None:
    rank = Rank()
    outcomes = (0, DONE)
    tried = [0, 0]
    for block in range(20):
        rank.endpoint.outcome = outcomes[block % 2]
        tried[block % 2] += rank.calls(1, block=block)
    assert tried == [fast._MOST_LEFT_OFF, 10]
