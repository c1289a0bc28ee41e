"""What spare ranges, the journal and a look at the cluster cost of decode speed.

    .venv/bin/python -m tools.bench_decode_cost [MODEL] [--tokens 40] [--rounds 10] [--starts 4] [--json]

A master and two workers on this computer, five times: with `--spare off`; the same again, which shows how much two
clusters that differ in nothing differ; with spare ranges; with `--spare off --journal`; and as the first, but looked at
as the page looks while it answers. They answer the same in turn, `--tokens` each, in `--rounds` rounds, each of which
begins with the next of them. Nobody drafts. All are begun anew `--starts` times, each time with another one first:
where a process's memory comes to lie makes a difference, too. Printed: tokens per second of the first, what of its
speed in the same round the others have, and milliseconds of processor time per token of all threads of each but the
nodes' engines, which also wait on the processor; each as median, least and most of the starts' medians. Linux.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.process.serving.serving import Serving
from tools.bench_view import family, looks, spent_s
from tools.figures import show
from tools.streaming import connection, events

_PLAIN: Final = "plain"
_LOOKED_AT: Final = "looked at"
_CLUSTERS: Final = {
    _PLAIN: ("--spare", "off"),
    "plain again": ("--spare", "off"),
    "spare ranges": (),
    "journal": ("--spare", "off", "--journal"),
    _LOOKED_AT: ("--spare", "off"),
}
_LIMIT_S = 300.0
#: As machines say of their memory: one more is worth having.
_SPEED = 1e6
#: Spare ranges are there by then, and the next plan's processes.
_SETTLED_S = 12.0
_PROMPT = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    found: dict[str, list[float]] = {}
    for start in range(options.starts):
        with tempfile.TemporaryDirectory() as folder:
            for name, values in _of_a_start(Path(folder), start, options).items():
                found.setdefault(name, []).append(statistics.median(values))
    show(found, as_json=options.as_json)
    return 0


def _of_a_start(folder: Path, start: int, options: argparse.Namespace) -> dict[str, list[float]]:
    clusters: dict[str, Serving] = {}
    try:
        for name in _from(start):
            clusters[name] = Serving(
                folder / name.replace(" ", "-"), "--min-workers", 2, "--speculate", "off", *_CLUSTERS[name],
                model=options.model, bytes_per_s=_SPEED,
            )  # fmt: skip
            _stand(clusters[name])
        time.sleep(_SETTLED_S)
        found: dict[str, list[float]] = {"plain, tokens/s": []}
        for number in range(options.rounds):
            prompt = [random.randrange(10, 1000) for _ in range(_PROMPT)]
            names = _from(start + number)
            # What is slow after a pause, or at first, is not measured.
            _tokens_per_s(clusters[names[-1]], options.tokens, prompt)
            turns = {name: _measured(name, clusters[name], options.tokens, prompt) for name in names}
            plain, _ = turns[_PLAIN]
            found["plain, tokens/s"].append(plain)
            for name, (speed, beside_ms) in turns.items():
                found.setdefault(f"{name}, ms beside the engines", []).append(beside_ms)
                if name != _PLAIN:
                    found.setdefault(name, []).append(speed / plain)
        return found
    finally:
        for cluster in clusters.values():
            cluster.close()


def _from(first: int) -> list[str]:
    """All clusters, in a turned order."""
    names = list(_CLUSTERS)
    first %= len(names)
    return names[first:] + names[:first]


def _stand(cluster: Serving) -> None:
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name, bytes_per_s=_SPEED)
    cluster.wait_ready(3, _LIMIT_S)


def _measured(name: str, cluster: Serving, tokens: int, prompt: Sequence[int]) -> tuple[float, float]:
    """Tokens per second, and milliseconds of processor time per token of all threads but the engines; while somebody
    looks, if that is what the cluster is for."""
    over = threading.Event()
    watcher = threading.Thread(target=looks, args=(cluster, over))
    roots, nodes = family(cluster)
    _, before_s = spent_s(roots, nodes)
    if name == _LOOKED_AT:
        watcher.start()
    try:
        speed = _tokens_per_s(cluster, tokens, prompt)
    finally:
        over.set()
        if name == _LOOKED_AT:
            watcher.join()
    _, after_s = spent_s(roots, nodes)
    return speed, 1000 * (after_s - before_s) / tokens


def _tokens_per_s(cluster: Serving, tokens: int, prompt: Sequence[int]) -> float:
    """From the first token of an answer to its last."""
    body = {
        "model": cluster.model if cluster.model == "demo" else Path(cluster.model).name,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    counted, times = [0], [0.0]
    with connection(cluster.url) as client:
        for event in events(client, "/v1/completions", body):
            if arrived := sum(len(choice.get("token_ids") or ()) for choice in event["choices"]):
                counted.append(counted[-1] + arrived)
                times.append(time.perf_counter())
    if counted[-1] != tokens:
        raise RuntimeError(f"{counted[-1]} of {tokens} tokens came")
    return (tokens - counted[1]) / (times[-1] - times[1])


if __name__ == "__main__":
    raise SystemExit(main())
