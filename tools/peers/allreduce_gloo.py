"""A group of processes that do all-reduces with torch.distributed's gloo, each at its place."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from tpiedge.errors import PeerError
from tpiedge.launch.child import Place

from .child import last_words, wait_or_kill
from .models import DRIVERS

_START_S = 90.0
_ROUND_S = 5.0


class GlooGroup:
    """One process per place, in rank order. A context manager: they are linked at its entry and gone at its exit."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = tuple(places)
        self._resources = ExitStack()
        self._ranks: list[_Rank] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def measure(self, nbytes: int, warm_up: int, rounds: int) -> list[float]:
        """Seconds of each of `rounds` all-reduces of so many bytes (f32, a multiple of 4), at rank 0. PeerError."""
        for rank in self._ranks:
            rank.tell({"elements": nbytes // 4, "warm_up": warm_up, "rounds": rounds})
        deadline = time.monotonic() + _ROUND_S * (warm_up + rounds)
        # Of all: while one of them is in its last all-reduce, none may be ended.
        first, *_ = [rank.hear(deadline) for rank in self._ranks]
        seconds: list[float] = first["seconds"]
        return seconds

    def _start(self) -> None:
        for number, place in enumerate(self._places):
            rank = _Rank(number, place)
            self._resources.callback(rank.close)
            self._ranks.append(rank)
        deadline = time.monotonic() + _START_S
        port = 0
        for number, rank in enumerate(self._ranks):
            address, root = self._places[number].host, self._places[0].host
            job = {"rank": number, "size": len(self._ranks), "address": address, "root": root}
            rank.tell(job | {"port": port})
            port = port or rank.hear(deadline)["port"]
        for rank in self._ranks:
            rank.hear(deadline)


class _Rank:
    def __init__(self, number: int, place: Place) -> None:
        self._number = number
        self._said = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        command = [*place.prefix, sys.executable, str(DRIVERS / "gloo_allreduce.py")]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("GLOO_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=settings | {"OMP_NUM_THREADS": "1"},
        )

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends to the process. If it has ended, `hear` says why."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, deadline: float) -> dict[str, Any]:
        """Returns its next answer. Raises PeerError."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._said:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self._lost("did not answer in time")
            data = os.read(pipe, 65536)
            if not data:
                raise self._lost("ended")
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        wait_or_kill(self._process)
        self._log.close()

    def _lost(self, how: str) -> PeerError:
        return PeerError(f"gloo's rank {self._number} {how}: {last_words(self._log)}")
