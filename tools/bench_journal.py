"""Measure the cost of `tpiedge master --journal` for each token, beside the rest of the master's.

    .venv/bin/python tools/bench_journal.py [--tokens 20000] [--repeats 5] [--folder FOLDER]

Printed, as medians in microseconds of processor time: "write", a line of a record, and "token", from the cluster's
iterator to the coroutine that sends it, without a record and with one in FOLDER.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpiedge.answers.log import AnswerLog
from tpiedge.answers.record import event_line
from tpiedge.api.parsed import Choice, Reply
from tpiedge.api.records import AcceptedRequest, RecordFolder
from tpiedge.master.journal import AnswerEvent
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

_REPLY = Reply(format="chat", stream=True, include_usage=False, logprobs=None, stops=(), token_ids=False)
_CHOICE = Choice(GenerationRequest("bench", (1,), 1))
_ACCEPTED = AcceptedRequest("bench", (_CHOICE,), 1, _REPLY, 0, "bench", "bench")
_LATE_S = 30.0
#: As of fast decoding: without a pause the threads would hand over many tokens at a time.
_GAP_S = 0.0005


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured  [default: a temporary one]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        folder, tokens = RecordFolder(Path(made) / "answers", "bench"), arguments.tokens
        rounds = [
            (_write_us(folder, tokens), _token_us(None, tokens), _token_us(folder, tokens))
            for _ in range(arguments.repeats)
        ]
    write, plain, kept = map(statistics.median, zip(*rounds, strict=True))
    sys.stdout.write(f"write {write:.1f}, token {plain:.1f} without a record and {kept:.1f} with one\n")
    return 0


class _Tokens:
    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def events(self) -> Iterator[AnswerEvent]:
        for index in range(self._tokens):
            time.sleep(_GAP_S)
            yield Token(0, "bench", index, index % 32_000, ())
        yield Finished(0, "bench", "length", 1, self._tokens, 0, self._tokens)

    def set_has_reader(self, has_reader: bool) -> None:
        """Does nothing: the answer has one reader."""

    def cancel(self) -> None:
        """Does nothing: the answer ends by itself."""

    def complete(self) -> None:
        """Does nothing: the answer ends by itself."""


def _write_us(folder: RecordFolder, tokens: int) -> float:
    file = folder.create(_ACCEPTED)
    token = Token(0, "bench", 0, 12_345, ())
    started = time.process_time()
    for _ in range(tokens):
        file.write(event_line(0, token))
    took = time.process_time() - started
    file.delete()
    return took / tokens * 1e6


def _token_us(folder: RecordFolder | None, tokens: int) -> float:
    started = time.process_time()
    asyncio.run(_read(folder, tokens))
    return (time.process_time() - started) / tokens * 1e6


async def _read(folder: RecordFolder | None, tokens: int) -> None:
    generation: Any = _Tokens(tokens)
    record = None if folder is None else folder.create(_ACCEPTED)
    log = AnswerLog(_ACCEPTED.question(None), record, time.monotonic)
    reader = log.read()
    queue: Any = None  # no choice is left to submit
    log.follow(({0: generation}, {}), queue)
    while True:
        event = await reader.next(_LATE_S)
        if event is not None and isinstance(event[1], Finished):
            break
    reader.disconnect("for good")


if __name__ == "__main__":
    sys.exit(main())
