"""A model larger than its memory: tpiedge and others under the same limit, in alternation, each in a fresh process."""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import FrameType

from tpiedge.errors import UserError
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.memory_group import MemoryUse, memory_group
from tpiedge.units import format_bytes

from .confined import Ended, run_confined
from .contestants import MAKERS, Answer, Contestant, Work, environment, prepare
from .disk import direct_rate, forget
from .install import VERSIONS
from .limits import Limit, parse_limits, required_ratio
from .models import SHAPES, Models, RandomModels
from .spread import ratios

_RATE_BYTES = 1_000_000_000
_OWN = "tpiedge"

PEERS = tuple(name for name in MAKERS if name != _OWN)
"""What tpiedge can be compared with."""


@dataclass(frozen=True)
class Run:
    """One child: an answer, or a failure in words."""

    answer: Answer | None
    failure: str | None
    use: MemoryUse
    wall_s: float

    @property
    def s_per_token(self) -> float | None:
        return self.answer.s_per_token if self.answer else None


def compare_offload(arguments: argparse.Namespace) -> dict[str, object]:
    """The record of a whole comparison. Raises UserError or NotInstalled where it cannot be made on this computer."""
    with memory_group(1 << 30):
        pass  # refuse before minutes of preparation
    signal.signal(signal.SIGTERM, _end)
    models = models_of(arguments)
    limits = parse_limits(arguments.limits, models.nbytes())
    work = Work(arguments.work, models, arguments.threads, arguments.tokens)
    contestants, missing = prepare((_OWN, *arguments.peers), work, MAKERS)
    os.sync()  # what was just written cannot be forgotten before
    found = [_compare_under(limit, contestants, work, arguments) for limit in limits]
    return {
        "model": work.models.name,
        "model_bytes": work.models.nbytes(),
        "threads": work.threads,
        "tokens": {"tpiedge, llama.cpp": work.tokens, "others": work.few_tokens},
        "repeats": arguments.repeats,
        "versions": VERSIONS,
        "not_installed": missing,
        "environment": {contestant.name: dict(contestant.settings) for contestant in contestants},
        "limits": found,
    }


def models_of(arguments: argparse.Namespace) -> Models:
    """Returns the models that the command line names. Raises UserError."""
    folder, preset = arguments.work / "models", SHAPES[arguments.shape or "1.1b"]
    if arguments.checkpoint and (arguments.shape or arguments.precision != "bf16"):
        raise UserError(
            f"--checkpoint {arguments.checkpoint} is compared as it is, in bf16; leave it out for random weights of "
            "another --shape or --precision"
        )
    if arguments.precision == "bf16":
        return Models(folder, arguments.checkpoint, preset)
    return RandomModels(folder, preset, arguments.precision)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # through the blocks that remove groups


def _compare_under(
    limit: Limit, contestants: list[Contestant], work: Work, arguments: argparse.Namespace
) -> dict[str, object]:
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in contestants}
    rates: list[float | None] = []
    for number in range(arguments.repeats):
        rates.append(direct_rate(work.models.weights()[0], _RATE_BYTES))
        for contestant in contestants:
            earlier = runs[contestant.name]
            if is_due(number, arguments.repeats, contestant.share, earlier):
                earlier.append(_measure(contestant, limit, arguments.deadline))
                print(
                    f"{format_bytes(limit.nbytes)}: {contestant.name}: {_line(earlier[-1])}", file=sys.stderr
                )
    return report_of_limit(limit, runs, [rate for rate in rates if rate is not None])


def is_due(number: int, repeats: int, share: float, earlier: Sequence[Run]) -> bool:
    """Whether a contestant runs in round `number`: in its share of the rounds, and not after two failures in a row.
    Running out of memory does not count: it is quick, and chance if an allocator keeps freed memory."""
    has_given_up = len(earlier) >= 2 and all(run.failure and not run.use.oom_kills for run in earlier[-2:])
    return number < math.ceil(share * repeats) and not has_given_up


def _measure(contestant: Contestant, limit: Limit, deadline_s: float) -> Run:
    forget(contestant.files)
    started = time.monotonic()
    ended = run_confined(contestant.command(limit), limit.nbytes, deadline_s, environment(contestant))
    return _run_of(contestant, ended, time.monotonic() - started)


def _run_of(contestant: Contestant, ended: Ended, wall_s: float) -> Run:
    if ended.failure:
        return Run(None, ended.failure, ended.use, wall_s)
    try:
        return Run(contestant.read(ended.out), None, ended.use, wall_s)
    except (ValueError, KeyError, IndexError) as error:
        return Run(None, f"its answer cannot be read: {error!r}", ended.use, wall_s)


def _line(run: Run) -> str:
    told = f"{run.s_per_token:.3f} s/token" if run.s_per_token is not None else run.failure
    return f"{told}, peak {format_bytes(run.use.peak_bytes)}, {run.wall_s:.0f} s in all"


def report_of_limit(limit: Limit, runs: dict[str, list[Run]], rates: list[float]) -> dict[str, object]:
    """Returns the JSON of one limit."""
    own = [run.s_per_token for run in runs[_OWN]]
    return {
        "limit_bytes": limit.nbytes,
        "percent_of_model": round(limit.percent, 1),
        "disk_direct_bytes_per_s": spread(rates) if rates else None,
        "contestants": {name: _report(of_one) for name, of_one in runs.items()},
        "times_slower_than_tpiedge": {
            name: _ratio(name, limit, ratios([run.s_per_token for run in of_one], own))
            for name, of_one in runs.items()
            if name != _OWN
        },
    }


def _report(runs: list[Run]) -> dict[str, object]:
    answers = [run.s_per_token for run in runs if run.s_per_token is not None]
    return {
        "s_per_token": spread(answers) if answers else None,
        "failures": [run.failure for run in runs if run.failure],
        "runs": [
            {
                "s_per_token": run.s_per_token,
                "failure": run.failure,
                "wall_s": run.wall_s,
                **asdict(run.use),
                **(run.answer.detail if run.answer else {}),
            }
            for run in runs
        ],
    }


def _ratio(peer: str, limit: Limit, values: list[float]) -> dict[str, object]:
    required = required_ratio(peer, limit)
    found = spread(values) if values else None
    met = None if required is None or found is None else found["median"] >= required
    return {"ratio": found, "required": required, "met": met}
