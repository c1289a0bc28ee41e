"""What `/metrics` costs the master: for each token of 16 answers, and for each look.

    .venv/bin/python tools/bench_metrics.py [--tokens 50000] [--repeats 5]

Printed, as medians in microseconds of processor time: "token", what the queue does for one, its measurement included;
"measurement", that alone; "look", the page with all histograms and the counters of eight nodes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import fields

from tpiedge.api.metrics import metrics_page
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.request_times import RequestTimes, Timeline
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.wire.control import Stats, Token
from tpiedge.wire.requests import GenerationRequest

_STREAMS = 16
_NODES = 8
_LOOKS = 50


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [
        (_token_us(arguments.tokens), _measurement_us(arguments.tokens), _look_us())
        for _ in range(arguments.repeats)
    ]
    token, measurement, look = map(statistics.median, zip(*rounds, strict=True))
    sys.stdout.write(f"token {token:.1f}, measurement {measurement:.2f}, look {look:.0f}\n")
    return 0


def _token_us(tokens: int) -> float:
    requests = RequestQueue(_STREAMS, _STREAMS, lambda _name: None, lambda: None)
    for number in range(_STREAMS):
        requests.submit(GenerationRequest(f"r-{number}", (1, 2, 3), tokens))
        requests.start(lambda _request: None)
    messages = [Token(1, f"r-{number % _STREAMS}", number // _STREAMS, 7, ()) for number in range(tokens)]

    def tell() -> None:
        for message in messages:
            requests.tell(message)

    return _us(tell, tokens)


def _measurement_us(tokens: int) -> float:
    times, now = RequestTimes(), time.monotonic
    lines = [Timeline(accepted=now()) for _ in range(_STREAMS)]
    for line in lines:
        times.started(line, now())

    def measure() -> None:
        for number in range(tokens):
            times.token(lines[number % _STREAMS], now())

    return _us(measure, tokens)


def _look_us() -> float:
    stats = Stats(*(1 for _ in fields(Stats)))
    nodes = tuple(
        NodeStatus(f"w-{rank}", rank, "ready", (0, 1), (0, 1), 2, 0, 0.0, 0, 0.1, counters=stats)
        for rank in range(_NODES)
    )
    times = RequestTimes()

    def look() -> None:
        for _ in range(_LOOKS):
            metrics_page(ClusterStatus(True, "", nodes, 0, 0, histograms=times.histograms()), "bench")

    return _us(look, _LOOKS)


def _us(work: Callable[[], None], times: int) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) / times * 1e6


if __name__ == "__main__":
    sys.exit(main())
