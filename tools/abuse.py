"""Abuse a cluster for an hour, beside a client that streams answers and compares every byte.

    .venv/bin/python -m tools.abuse [--minutes 60] [--seed 1] [--phases "junk,together"] [--json FILE]

A master with an API key and two workers, real processes on loopback with folders of their own, serve the demo model.
After a warm-up the phases come one after the other, each as long as the others: callers and peers that say nothing,
junk on every port, empty frames, guesses of tokens and codes, 2,000 connections, absurd requests, a full queue, readers
that do not read, clients that leave, members whose messages are wrong, bursts of requests for files, members whose node
breaks the rules; then all together, without and with those nodes. A little of everything comes before that, checked by
its answers alone: the memory that it needs is kept by the allocator, and is what memory is compared with.

All through, a client streams a greedy and a sampled answer in turn. An answer may be refused in words (429, 503) while
others hold the queue or the connections, and may end in an error, in words, where a node with a part of the plan breaks
the rules; it is never wrong, and never ends early as if it were whole. After each phase the next answer is exact, no
process has come or gone, and each holds as many descriptors (within 2) and threads as before and at most 10 % or 16 MiB
more memory; a log may grow by 256 KiB and 64 KiB a minute.

Exit status: 0 where all of that is so, 1 where it is not, 130 where it was interrupted. Linux.
"""

import argparse
import contextlib
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import httpx

from tests.process.imposter.imposter import SLOW
from tests.process.serving.serving import Serving
from tools.abusing.soak import NODES, PHASES, Phase, PhaseRecord, Soak, SoakFailure
from tools.abusing.table import line, table
from tools.abusing.target import Target
from tpiedge.host.addresses import Address
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.joining.tokens import JoinToken, TokenStore
from tpiedge.pack.manifest import manifest_bytes, pack_id

_INTERRUPTED = 130
#: As a login shell has it on most systems.
_FILES = 1024
_WARM_S = 15.0
#: Characters of an error, which may have whole logs.
_SHOWN = 4000


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    records: list[PhaseRecord] = []
    faults: list[str] = []
    try:
        _soak(options, records)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (SoakFailure, AssertionError, httpx.HTTPError, subprocess.TimeoutExpired) as error:
        faults.append(f"{type(error).__name__}: {str(error)[:_SHOWN]}")
    if options.json:
        _write(options, records, faults)
    print(f"\n{table(records)}")
    for record in records:
        for fault in record.faults:
            print(f"FAULT in {record.name}: {fault}")
    for fault in faults:
        print(f"FAULT: {fault}")
    return int(bool(faults) or any(record.faults for record in records))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.abuse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of abuse, in all [default: 60]")
    parser.add_argument("--seed", type=int, default=1, help="of the attacks' random numbers [default: 1]")
    parser.add_argument("--phases", type=_phases, default=PHASES, help="names, with commas [default: all]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="for logs and states [default: temporary]"
    )
    return parser


def _phases(text: str) -> tuple[Phase, ...]:
    known = {phase.name: phase for phase in PHASES}
    chosen = [name.strip() for name in text.replace("together, with nodes", "\0").split(",")]
    chosen = [name.replace("\0", "together, with nodes") for name in chosen]
    for name in chosen:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of: {'; '.join(known)}")
    return tuple(known[name] for name in chosen)


def _soak(options: argparse.Namespace, records: list[PhaseRecord]) -> None:
    started = time.monotonic()

    def tell(words: str) -> None:
        print(f"{time.monotonic() - started:7.0f} s  {words}", flush=True)

    tell("starting the cluster")
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tpiedge-abuse-"))
        )
        cluster, target = stack.enter_context(_cluster(folder))
        soak = Soak(cluster, target, options.seed, tell)
        stack.callback(soak.close)
        tell(f"the baseline: {soak.baseline}")
        seconds = 60 * options.minutes / len(options.phases)
        soak.warm_up(options.phases, min(seconds, _WARM_S))
        for phase in options.phases:
            tell(f"{phase.name}: begins")
            record = soak.run(phase, seconds)
            records.append(record)
            tell(line(record))
            for fault in record.faults:
                tell(f"{phase.name}: FAULT: {fault}")
        tell("ending the cluster")


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Serving, Target]]:
    """Yields a serving master with two workers. Raises AssertionError if they do not serve, or outlive the block."""
    os.environ["TPIEDGE_CONFIG"] = os.devnull
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, most), most))
    key = secrets.token_urlsafe(16)
    cache = folder / "cache"
    # All are so slow, as they say, that one more machine is worth having.
    cluster = Serving(folder, "--min-workers", NODES - 1, "--api-key", key, cache=cache, bytes_per_s=SLOW)
    with contextlib.closing(cluster):
        cluster.start_master()
        for name in ("ann", "bob"):
            cluster.start_worker(name, bytes_per_s=SLOW)
        cluster.wait_ready(NODES)
        yield cluster, _target(cluster, key, cache)


def _target(cluster: Serving, key: str, cache: Path) -> Target:
    state = cluster.state / "master"
    master_key = load_or_create_keys(state).public
    _, secret = TokenStore(state).create(7 * 86400.0, uses=None)
    (manifest,) = cache.rglob("manifest.json")
    return Target(
        cluster.address,
        Address(cluster.address.host, cluster.http_port),
        cluster.model,
        key,
        master_key,
        JoinToken(master_key, secret, cluster.address).text,
        pack_id(manifest_bytes(manifest.parent)),
    )


def _write(options: argparse.Namespace, records: Sequence[PhaseRecord], faults: Sequence[str]) -> None:
    found = {"minutes": options.minutes, "seed": options.seed, "phases": records, "faults": faults}
    options.json.write_text(json.dumps(found, indent=2, default=_values) + "\n")


def _values(record: object) -> dict[str, object]:
    """Returns the fields of a dataclass; nested dataclasses stay as they are."""
    return {one.name: getattr(record, one.name) for one in fields(record)}  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
