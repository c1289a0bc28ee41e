"""Measure the pause of an answer when a node is killed in the middle of it, in a cluster of three machines.

    .venv/bin/python -m tools.bench_pause [MODEL] [--changes 6] [--planned] [--served 9] [--tokens 300] [--prompt 16]

Each answer starts once the cluster has served for `--served` seconds (after 5 s plans for losses are made); then a
worker's node is killed, or with `--planned` a worker drained. Printed: seconds from the loss, or the last token before
the change, to the next token: median, least and most; and answers in q8 and q4 that differ from the undisturbed one,
with which the status is 1. Linux.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.process.command import run_command
from tests.process.serving.serving import Serving

_LIMIT_S = 300.0
#: Of the answer's undisturbed time, when the node is killed.
_PART = 0.6
#: As machines say of their memory: one more is worth having.
_SPEED = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo", help="[default: the demo model in q4]")
    parser.add_argument("--changes", type=int, default=6)
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--served", type=float, default=9.0, metavar="SECONDS")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measured(Path(folder), options)
    if options.as_json:
        print(json.dumps(found))
    else:
        pauses = found["pauses_s"]
        spread = f"{min(pauses):.2f}-{max(pauses):.2f}"
        print(f"answers paused {statistics.median(pauses):.2f} s ({spread}); {found['wrong']} were wrong")
    return 1 if found["wrong"] else 0


def _measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    precision = ("--precision", "q4") if options.model == "demo" else ()
    cluster = Serving(
        folder / "cluster", "--min-workers", 1, *precision, model=options.model, bytes_per_s=_SPEED
    )
    try:
        cluster.start_master()
        for name in ("ann", "bob"):
            cluster.start_worker(name, bytes_per_s=_SPEED)
        cluster.wait_ready(3)
        undisturbed, whole_s = _answer(cluster, options)
        pauses: list[float] = []
        wrong = 0
        for number in range(options.changes):
            cluster.wait_ready(3)
            time.sleep(options.served)
            change = threading.Timer(_PART * whole_s, _change, (cluster, options.planned, number))
            change.start()
            answer, _ = _answer(cluster, options)
            change.join()
            if options.planned:
                _drain(cluster, "--undo")
            if "pauses" not in answer["usage"]:
                raise SystemExit("the answer ended before the change: give more --tokens")
            pauses.append(answer["usage"]["pauses"]["seconds"])
            wrong += answer["choices"] != undisturbed["choices"]
            if not options.as_json:
                print(f"{pauses[-1]:.2f} s", flush=True)
        return {"pauses_s": pauses, "wrong": wrong, "undisturbed_s": round(whole_s, 3)}
    finally:
        cluster.close()


def _change(cluster: Serving, planned: bool, number: int) -> None:
    """Drains bob if `planned`; otherwise kills the node of ann or bob, in turn."""
    if planned:
        _drain(cluster)
    else:
        cluster.workers[("ann", "bob")[number % 2]].node.kill()


def _drain(cluster: Serving, *options: str) -> None:
    done = run_command("nodes", "drain", "bob", *options, TPIEDGE_STATE=str(cluster.state))
    assert done.status == 0, done.err


def _answer(cluster: Serving, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Returns a greedy answer and the seconds that it took."""
    body = {
        "model": cluster.model if cluster.model == "demo" else Path(cluster.model).name,
        "prompt": list(range(10, 11 + options.prompt)),
        "max_tokens": options.tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    begun = time.monotonic()
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=_LIMIT_S, trust_env=False)
    answer.raise_for_status()
    return answer.json(), time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
