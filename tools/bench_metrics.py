"""Measure the cost of `/metrics` and `/admin/cluster` for the master: per token of 16 answers, and per look.

    .venv/bin/python tools/bench_metrics.py [--tokens 50000] [--repeats 5]

Printed, as medians in microseconds of processor time: "token", what the queue does for one, its measurement included;
"measurement", that alone; "look", the page with all histograms and the counters of eight nodes; "picture", that of the
cluster, with 16 requests, 100 events, and a step of 32 layers on all nodes.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tpiedge.api.cluster import ClusterPicture
from tpiedge.api.metrics import metrics_page
from tpiedge.api.timeline import shown_step
from tpiedge.local.served_models import ServedModel
from tpiedge.master.counters import Counted, StepTimeline
from tpiedge.master.history import EVENTS, ClusterEvent
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.request_times import RequestHistograms, Timeline
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.wire.control import Stats, StepSpans, Token
from tpiedge.wire.requests import GenerationRequest

_STREAMS = 16
_NODES = 8
_LOOKS = 50


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [
        (_token_us(arguments.tokens), _measurement_us(arguments.tokens), _look_us(), _picture_us())
        for _ in range(arguments.repeats)
    ]
    token, measurement, look, picture = map(statistics.median, zip(*rounds, strict=True))
    found = f"token {token:.1f}, measurement {measurement:.2f}, look {look:.0f}, picture {picture:.0f}"
    sys.stdout.write(f"{found}\n")
    return 0


def _running(tokens: int) -> RequestQueue:
    requests = RequestQueue(_STREAMS, _STREAMS, lambda _name: None, lambda: None)
    for number in range(_STREAMS):
        requests.submit(GenerationRequest(f"r-{number}", (1, 2, 3), tokens))
        requests.start(lambda _request: None)
    return requests


def _token_us(tokens: int) -> float:
    requests = _running(tokens)
    messages = [Token(1, f"r-{number % _STREAMS}", number // _STREAMS, 7, ()) for number in range(tokens)]

    def tell() -> None:
        for message in messages:
            requests.handle(message)

    return _us(tell, tokens)


def _measurement_us(tokens: int) -> float:
    times, now = RequestHistograms(), time.monotonic
    lines = [Timeline(accepted=now()) for _ in range(_STREAMS)]
    for line in lines:
        times.started(line, now())

    def measure() -> None:
        for number in range(tokens):
            times.token(lines[number % _STREAMS], now())

    return _us(measure, tokens)


def _status() -> ClusterStatus:
    stats = Stats(*(1 for _ in Stats.__struct_fields__))
    nodes = tuple(
        NodeStatus(
            f"w-{rank}", rank, "ready", (0, 1), (0, 1), 2, 0, 0.0, 0, 0.1, counted=Counted(stats, stats, 0.0)
        )
        for rank in range(_NODES)
    )
    return ClusterStatus(True, "", nodes, 0, 0, histograms=RequestHistograms())


def _look_us() -> float:
    status = _status()

    def look() -> None:
        for _ in range(_LOOKS):
            metrics_page(status, "bench")

    return _us(look, _LOOKS)


def _picture_us() -> float:
    status, requests = _status(), _running(1)
    events = (ClusterEvent(1.7e9, "joined", "attic", "a line"),) * EVENTS
    service: Any = SimpleNamespace(
        model=lambda: ServedModel("bench", 1024, 0),
        request_lines=lambda: requests.lines,
        events=lambda: events,
    )
    pictures = ClusterPicture(service, lambda _client: None)
    timeline = StepTimeline(status.epoch, 1.7e9, tuple(_spans(rank) for rank in range(len(status.nodes))))

    def look() -> None:
        for number in range(_LOOKS):
            shown = shown_step(timeline, status.nodes, status.epoch)
            json.dumps(pictures.of(status, (), shown, float(number)))

    return _us(look, _LOOKS)


def _spans(rank: int) -> StepSpans:
    """Returns spans of 32 layers: arithmetic and all-reduces alternate, half a millisecond each."""
    compute, reduce = (tuple((500 * at, 500 * at + 400) for at in range(first, 128, 2)) for first in (0, 1))
    return StepSpans(1, rank, 7, 1, compute, reduce, ())


def _us(work: Callable[[], None], times: int) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) / times * 1e6


if __name__ == "__main__":
    sys.exit(main())
