"""Break a cluster again and again while clients read answers, and compare every answer with the undisturbed one.

    .venv/bin/python -m tools.nemesis [MODEL] [--kills 100 | --minutes 10] [--faults kills,links] [--seed 1]
        [--apart 2] [--workers 2] [--clients 4] [--tokens 300] [--precision q4] [--forms] [--json] [--keep FOLDER]

A master and its workers, real processes with folders of their own, answer clients that ask one thing after the other,
greedy or sampled with a seed. First each question is answered without a fault. Then things break at random instants,
sometimes two at once; --faults says what, and all that can be done here breaks where it is not given:

    kills       a node, an agent or rank 0 is killed (-9)
    processes   a node, an agent, rank 0 or a whole machine is stopped for 0.1 to 10 s, a worker leaves in order or is
                drained, another one joins for a while
    links       a worker's link is cut, carries one way only, answers with resets, loses packets or is slow, or two
                workers do not reach each other, for 0.5 to 10 s (root, nftables, iproute2: machines are namespaces)
    disks       a worker's disk is full, or cannot be read, for 2 to 15 s (root: disks are files)
    memory      a worker may take hardly more memory than it has, for 0.5 to 10 s (root: control groups)
    clocks      the time of day of one machine jumps by up to an hour, for 0.5 to 10 s (a C compiler)
    master      the master itself is killed (-9) and started again; clients connect again and read on (--journal)
    pages       page files of the KV cache are altered, cut, deleted or renamed, their folder is a file for 1 to 8 s,
                and processes are killed while they write one (--journal, --keep-context, --kv-disk, and less memory
                for the KV cache than the clients need)
    page-disks  the disk of a machine's page files is full, or cannot be read, for 2 to 15 s (root: disks are files)
    readers     a client stands still for up to 4 s in the middle of an answer, which may end meanwhile; its connection
                breaks, and it connects again and reads on (--journal)

With --forms every kind of answer of every API is asked for (tools/nemesis/forms.py): choices, log probabilities, stop
strings, schemas, calls of tools; streamed and whole. The model is then the demo with a template that knows tools.

What does not mend itself, as a killed agent, is started again some seconds later. --min-workers is one less than there
are, so that the cluster goes on without one. With --precision q8 or q4 every answer must be the undisturbed one, byte
for byte.

Afterwards the cluster must be whole, answer as ever, and hold what it held before: processes, descriptors, threads,
memory, what is on disk; no log has a traceback, and no agent has ended but by a fault of its machine. Page files stay
within their limits, and none is parked when the cluster has ended.

Printed: how many answers there were, how many were wrong or lost, and the time from what broke, or was mended, to the
next token of each answer that paused for it (for a new plan alone: from the beginning of the pause), beside the bound
of one fault alone: 2 s to notice (not for a plan), 1.5 s to stand again, and what reading the weights and a prompt as
long as the longest answer took without a fault. Exit status 0 where nothing is wrong, lost or left over, 130 where it
was interrupted, 1 otherwise. Linux.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.process.command import wait_for
from tools.nemesis.figures import pauses, say
from tools.nemesis.forms import FORMS
from tools.nemesis.holdings import held, left_over, moved_pages, parked_files, reading_s
from tools.nemesis.nemesis import Nemesis
from tools.nemesis.readers import PROMPT_TOKENS, Readers, answer, prefill_s, questions
from tools.nemesis.scene import Scene, Seconds
from tools.nemesis.stage import (
    KINDS,
    MIXTURE,
    PAGED,
    RECORDED,
    Stage,
    calling_model,
    mixture,
    set_up,
    why_not,
)
from tools.streaming import connection

_INTERRUPTED = 130
_CONTEXT = 1024
_PAGED_TOKENS = 200  # of a prompt: three pages of the demo
_KILLS = 100
_STARTED_S = 300.0
_APART_S = 2.0
_UNEVEN: Seconds = (0.15, 1.85)  # of --apart, from one fault to the next
_SHOWN = 4000  # characters of an error, which may have whole logs


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ["TPIEDGE_CONFIG"] = os.devnull
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # also in the background, where a shell has the first ignored
        signal.signal(number, signal.default_int_handler)
    try:
        return _nemesis(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _nemesis(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="tpiedge-nemesis-") as place:
        folder = options.keep or Path(place)
        folder.mkdir(exist_ok=True)
        kinds = _possible(options.faults, folder)
        if not kinds:
            print("nemesis: nothing of --faults can be broken here", file=sys.stderr)
            return 2
        record = _break(folder, kinds, options)
        (folder / "record.json").write_text(json.dumps(record, indent=2))
    print(json.dumps(record) if options.as_json else say(record))
    return int(bool(record["faults"]) or not record["answers"])


def _possible(kinds: Sequence[str], folder: Path) -> list[str]:
    """Says of the others why not, on standard error."""
    found = []
    for kind in kinds:
        reason = why_not(kind, folder)
        if reason is None:
            found.append(kind)
        else:
            print(f"nemesis: no {kind} are broken: {reason}", file=sys.stderr)
    return found


def _break(folder: Path, kinds: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    names = [f"worker-{number}" for number in range(options.workers)]
    flags = ("--min-workers", max(0, options.workers - 1), "--precision", options.precision)
    together = 1 if PAGED.intersection(kinds) else options.clients
    sizes = ("--context", _CONTEXT, "--kv-tokens", _CONTEXT * together)
    journal = ("--journal",) if RECORDED.intersection(kinds) else ()
    model = calling_model(folder) if options.forms else options.model
    model = mixture(folder) if model == MIXTURE else model
    record: dict[str, Any] | None = None
    try:
        with set_up(folder, kinds, names, model, (*flags, *sizes, *journal)) as stage:
            stage.start(_STARTED_S)
            record = _run(stage, kinds, options)
            record["left_over"] += parked_files(stage)
    except AssertionError as error:  # of the cluster: it does not start, or leaves something behind
        if record is None:
            raise SystemExit(f"nemesis: {str(error)[-_SHOWN:]}") from None
        record["left_over"].append(str(error)[-_SHOWN:])
    record["faults"] = [
        *record["wrong"], *record["lost"], *record["left_over"], *record["unexplained"],
    ]  # fmt: skip
    return record


def _run(stage: Stage, kinds: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    url = stage.cluster.url
    recorded = RECORDED.intersection(kinds)
    forms = [form for form in FORMS if form.resumable or not recorded] if options.forms else []
    length = _PAGED_TOKENS if PAGED.intersection(kinds) else PROMPT_TOKENS
    drawn = questions(url, options.seed, options.tokens, forms, length)
    reading, prefill = reading_s(stage), prefill_s(url, drawn)
    before, moved = held(stage), moved_pages(stage)
    if not options.as_json:
        form_count = len({one.form for one in drawn})
        span = f"{options.minutes:g} min" if options.minutes else f"{options.kills} faults"
        print(
            f"{len(drawn)} questions of {form_count} kinds are answered; {span} of {', '.join(kinds)}, "
            f"{options.clients} clients",
            flush=True,
        )
    scene = Scene(stage, options.seed)
    readers = Readers(url, drawn, options.clients, options.seed, scene.breaks)
    nemesis = Nemesis(scene, kinds)
    readers.start()
    try:
        struck = _strike(scene, nemesis, options)
    finally:
        scene.mend(everything=True)
        readers.stop()
    wait_for(stage.cluster.answers, _STARTED_S)
    found = readers.found
    moved += moved_pages(stage)
    leavings = left_over(stage, before, _pack_bytes(stage), scene.mend)
    with connection(url) as client:
        again = [one for one in drawn if answer(client, one) != one.right]
    return {
        "seed": options.seed,
        "forms": sorted({one.form.name for one in drawn}),
        "kills": struck,
        "by_kind": dict(nemesis.count),
        "answers": found.answers,
        "tokens": found.tokens,
        "asked_again": found.again,
        "paused_answers": found.paused,
        "wrong": found.wrong + [f"afterwards: {one.body}" for one in again],
        "lost": found.lost,
        "left_over": leavings,
        "moved_pages": dict(moved),
        "ended": scene.ended,
        "unexplained": scene.unexplained,
        **pauses(found, scene.changes, reading, prefill),
    }


def _strike(scene: Scene, nemesis: Nemesis, options: argparse.Namespace) -> int:
    """Strikes until there were as many faults as wanted, or the time is over. Returns their number."""
    struck, draws = 0, random.Random(f"{options.seed}/quiet")
    ends = time.monotonic() + 60 * (options.minutes or 0.0)
    while time.monotonic() < ends if options.minutes else struck < options.kills:
        scene.wait(options.apart * draws.uniform(*_UNEVEN))
        struck += nemesis.strike()
    scene.wait(options.apart * _UNEVEN[1])
    return struck


def _pack_bytes(stage: Stage) -> int:
    model, cache = Path(stage.cluster.model), stage.cluster.cache
    place = model if model.is_dir() or cache is None else cache
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def _kinds(text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in KINDS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(KINDS)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.nemesis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="demo", help="or mixture, with experts [default: demo]")
    parser.add_argument("--tokens", type=int, default=300, help="of an answer [default: 300]")
    span = parser.add_mutually_exclusive_group()
    span.add_argument("--kills", type=int, default=_KILLS, help="faults [default: 100]")
    span.add_argument("--minutes", type=float, help="of faults, however many there are")
    parser.add_argument(
        "--apart", type=float, default=_APART_S, help="seconds between faults, in the mean [default: 2]"
    )
    parser.add_argument("--faults", type=_kinds, default=KINDS, help="kinds, with commas [default: all]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    parser.add_argument("--workers", type=int, default=2, help="beside the master [default: 2]")
    parser.add_argument("--clients", type=int, default=4, help="[default: 4]")
    parser.add_argument("--precision", choices=("q8", "q4"), default="q4", help="[default: q4]")
    parser.add_argument("--forms", action="store_true", help="ask for every kind of answer of every API")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="new, for logs and states [default: temporary]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
