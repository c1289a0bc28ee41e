"""Measure what spare ranges, the journal and a look at the cluster cost of decode speed.

    .venv/bin/python -m tools.bench_decode_cost [MODEL] [--tokens 80] [--rounds 14] [--starts 1] [--json]

Four clusters of a master and two workers answer in turn: two with `--spare off` (their difference is noise), one with
spare ranges, one with `--spare off --journal`. The first also answers while its view is polled. Printed: tokens per
second of the first, and ratios within a round: median, least, most, and limits of the median at 95 % certainty.
"""

import argparse
import json
import math
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.process.serving.serving import Serving
from tools.bench_view import FORGOTTEN_S, looks
from tools.streaming import connection, events

_PLAIN: Final = "plain"
_CLUSTERS: Final = {
    _PLAIN: ("--spare", "off"),
    "again": ("--spare", "off"),
    "spare": (),
    "journal": ("--spare", "off", "--journal"),
}
_LIMIT_S = 300.0
#: As machines say of their memory: one more is worth having.
_SPEED = 1e6
#: Spare ranges are there by then, and the next plan's processes.
_SETTLED_S = 12.0
_PROMPT = 16


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    found: dict[str, list[float]] = {}
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as folder:
            for name, values in _of_a_start(Path(folder), options).items():
                found.setdefault(name, []).extend(values)
    if options.as_json:
        print(json.dumps(found))
        return 0
    for name, values in found.items():
        spread = f"{min(values):.3f}-{max(values):.3f}"
        low, high = _limits(values)
        print(f"{name}: {statistics.median(values):.3f} ({spread}), the median from {low:.3f} to {high:.3f}")
    return 0


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Returns limits of the median at 95 % certainty, by the binomial distribution of its rank."""
    ranked, count = sorted(values), len(values)
    beyond, rank = 0.5**count, 0
    while rank + 1 < count / 2 and beyond + math.comb(count, rank + 1) * 0.5**count <= 0.025:
        rank += 1
        beyond += math.comb(count, rank) * 0.5**count
    return ranked[rank], ranked[-1 - rank]


def _of_a_start(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    clusters: dict[str, Serving] = {}
    try:
        for name, words in _CLUSTERS.items():
            clusters[name] = Serving(
                folder / name, "--min-workers", 2, "--speculate", "off", *words,
                model=options.model, bytes_per_s=_SPEED,
            )  # fmt: skip
            _stand(clusters[name])
        time.sleep(_SETTLED_S)
        found: dict[str, list[float]] = {}
        for number in range(options.rounds):
            for name, value in _round(clusters, options.tokens, number).items():
                found.setdefault(name, []).append(value)
        return found
    finally:
        for cluster in clusters.values():
            cluster.close()


def _stand(cluster: Serving) -> None:
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name, bytes_per_s=_SPEED)
    cluster.wait_ready(3, _LIMIT_S)


def _round(clusters: dict[str, Serving], tokens: int, number: int) -> dict[str, float]:
    """Measures each turn once. Over all rounds, each turn has every place in the order equally often."""
    prompt = [random.randrange(10, 1000) for _ in range(_PROMPT)]
    turns = {name: partial(_tokens_per_s, cluster, tokens, prompt) for name, cluster in clusters.items()}
    turns["looked at"] = partial(_looked_at, clusters[_PLAIN], tokens, prompt)
    names = list(turns)
    first = number % len(names)
    names = names[first:] + names[:first]
    turns[names[-1]]()  # what is slow after a pause is not measured
    speeds = {}
    for name in names:
        if name == _PLAIN:
            time.sleep(FORGOTTEN_S)
            turns["again"]()  # as above
        speeds[name] = turns[name]()
    return {
        "plain, tokens/s": speeds[_PLAIN],
        "again / plain": speeds["again"] / speeds[_PLAIN],
        "spare ranges / plain": speeds["spare"] / speeds[_PLAIN],
        "spare ranges / again": speeds["spare"] / speeds["again"],
        "recorded / plain": speeds["journal"] / speeds[_PLAIN],
        "recorded / again": speeds["journal"] / speeds["again"],
        "looked at / plain": speeds["looked at"] / speeds[_PLAIN],
    }


def _looked_at(cluster: Serving, tokens: int, prompt: Sequence[int]) -> float:
    """Returns `_tokens_per_s` while the page's view is polled."""
    over = threading.Event()
    watcher = threading.Thread(target=looks, args=(cluster, over))
    watcher.start()
    try:
        return _tokens_per_s(cluster, tokens, prompt)
    finally:
        over.set()
        watcher.join()


def _tokens_per_s(cluster: Serving, tokens: int, prompt: Sequence[int]) -> float:
    """Returns the rate over the last three quarters of an answer."""
    body = {
        "model": cluster.model if cluster.model == "demo" else Path(cluster.model).name,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with connection(cluster.url) as client:
        times = [time.perf_counter() for said in events(client, "/v1/completions", body) if said["choices"]]
    times = times[-1 - tokens * 3 // 4 :]
    return (len(times) - 1) / (times[-1] - times[0])


if __name__ == "__main__":
    raise SystemExit(main())
