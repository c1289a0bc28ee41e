"""Measure what speculation gains: recorded answers, replayed with drafts and without.

    .venv/bin/python -m tools.bench_speculation PACK [--cases resident,streaming,link-1ms,link-5ms] [--repeats 5]

PACK may have random weights: `tpiedge pack --random tinyllama --precision q4 --out PACK`. Steps are computed as in a
cluster; then the drawn token is replaced by that of tools/traces (tools/record_acceptance.py). Cases: all weights in
memory; `--kept` of them, the others from disk; two nodes over simulated links of 300 Mbit/s. Two clusters of a case
answer in alternation. Printed: seconds from first to last token, as medians with minimum and maximum, and ratios by
pair.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fakes.cluster import InProcessCluster
from tests.shaped_links import LinkModel, LinkSettings, ShapedNetwork
from tpiedge.cli.listing import print_table
from tpiedge.collectives.communicator import Route
from tpiedge.engine.batcher import MAX_DRAFTED
from tpiedge.engine.sampler import Sampled, Sampler
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.device import default_threads
from tpiedge.lab.bench.figures import milliseconds, spread
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, Sweep, place
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.reader import Pack
from tpiedge.planner.needs import model_facts
from tpiedge.planner.solve import ShareWeight, partition
from tpiedge.wire.control import AnswerPart, Token
from tpiedge.wire.requests import GenerationRequest

TRACES: Final = Path(__file__).parent / "traces"
BYTES_PER_S: Final = 300e6 / 8


@dataclass(frozen=True)
class Case:
    """`link`: each direction between two nodes; None: one node. `streams`: not all weights are kept."""

    name: str
    link: LinkSettings | None = None
    streams: bool = False


CASES: Final = (
    Case("resident"),
    Case("streaming", streams=True),
    Case("link-1ms", LinkSettings(latency_s=0.001, bytes_per_s=BYTES_PER_S)),
    Case("link-5ms", LinkSettings(latency_s=0.005, bytes_per_s=BYTES_PER_S)),
)


@dataclass(frozen=True)
class Trace:
    """A recorded answer, in ids that every vocabulary has."""

    name: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]

    @staticmethod
    def read(path: Path, tokens: int) -> "Trace":
        """Reads up to `tokens` tokens of the answer. Raises UserError if the file is no trace."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return Trace(path.stem, tuple(content["prompt_ids"]), tuple(content["answer_ids"][:tokens]))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is no trace of tools/record_acceptance.py: {error!r}") from None


class GivenSampler:
    """Draws as a sampler does, but gives the tokens of a recorded answer, in order."""

    def __init__(self, sampler: Sampler, answer_ids: Sequence[int]) -> None:
        self._sampler = sampler
        self._answer_ids = answer_ids
        self._done = 0

    def sample(self, logits_V: Any, allowed: Any = None) -> Sampled:
        self._sampler.sample(logits_V, allowed)
        return Sampled(self._answer_ids[self._done], ())

    def accept(self, token: int) -> None:
        self._sampler.accept(token)
        self._done += 1


class Replay:
    """A cluster that answers with traces."""

    def __init__(self, cluster: InProcessCluster, traces: Sequence[Trace]) -> None:
        self._cluster = cluster
        self._traces = {trace.name: trace for trace in traces}
        #: Of the latest answer.
        self.tokens: list[int] = []

    def answer(self, name: str) -> tuple[float, int]:
        """Returns (seconds per token after the first, steps that the answer took)."""
        trace = self._traces[name]
        times: list[float] = []
        self.tokens = []

        def emit(event: AnswerPart) -> None:
            times.append(time.perf_counter())
            if isinstance(event, Token):
                self.tokens.append(event.token)

        request = GenerationRequest(name, trace.prompt_ids, len(trace.answer_ids), ignore_eos=True)
        finished = self._cluster.leader.generate(request, emit, lambda: False)
        return (times[-1] - times[0]) / (len(times) - 1), finished.steps


def main() -> int:
    """Returns the exit code of the error if a case fails."""
    arguments = _parser().parse_args()
    try:
        traces = [Trace.read(path, arguments.tokens) for path in arguments.traces]
        record = [
            row for case in CASES if case.name in arguments.cases for row in measure(case, traces, arguments)
        ]
    except TpiedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        _print(record)
    return 0


def measure(case: Case, traces: Sequence[Trace], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each trace."""
    with ExitStack() as stack:
        off = stack.enter_context(_replay(case, traces, 0, arguments))
        auto = stack.enter_context(_replay(case, traces, MAX_DRAFTED, arguments))
        for replay in (off, auto):
            replay.answer(traces[0].name)
        return [_compared(case, trace, off, auto, arguments.repeats) for trace in traces]


def _compared(case: Case, trace: Trace, off: Replay, auto: Replay, repeats: int) -> dict[str, Any]:
    pairs = []
    for repeat in range(repeats):
        print(f"{case.name}, {trace.name}: {repeat + 1} of {repeats}", file=sys.stderr)
        pairs.append((off.answer(trace.name), auto.answer(trace.name)))
    tokens = len(trace.answer_ids)
    return {
        "case": case.name,
        "trace": trace.name,
        "tokens": tokens,
        "off_s_per_token": spread([without[0] for without, _ in pairs]),
        "auto_s_per_token": spread([drafting[0] for _, drafting in pairs]),
        "speedup": spread([without[0] / drafting[0] for without, drafting in pairs]),
        "tokens_per_step": tokens / statistics.median(drafting[1] for _, drafting in pairs),
    }


@contextmanager
def _replay(
    case: Case, traces: Sequence[Trace], speculate: int, arguments: argparse.Namespace
) -> Iterator[Replay]:
    pack = Pack.open(arguments.pack)
    config = config_of_pack(pack)
    for trace in traces:
        if max(*trace.prompt_ids, *trace.answer_ids) >= config.vocab_size:
            raise UserError(f"the trace {trace.name} has more kinds of tokens than the model's vocabulary")
    answers = {trace.name: trace.answer_ids for trace in traces}

    def sampler_of(request: GenerationRequest) -> GivenSampler:
        sampler = Sampler(request.sampling, request.prompt_ids, config.vocab_size)
        return GivenSampler(sampler, answers[request.id])

    nodes = 1 if case.link is None else 2
    shape = model_facts(pack, compute="int8", kv="bf16").shape
    with ExitStack() as stack:
        cluster = stack.enter_context(
            InProcessCluster(
                arguments.pack,
                partition(shape, [ShareWeight(1, 1)] * nodes),
                capacity_tokens=max(len(trace.prompt_ids) + len(trace.answer_ids) for trace in traces),
                placement=_kept(arguments.kept) if case.streams else None,
                route=Route(small="mesh", bulk="mesh", wire=arguments.wire),
                speculate=speculate,
                sampler_of=sampler_of,
                threads=max(1, arguments.threads // nodes),
            )
        )
        if case.link is not None:
            link = case.link
            network = stack.enter_context(closing(ShapedNetwork(lambda *_: LinkModel(link))))
            network.join(*cluster.endpoints)
        yield Replay(cluster, traces)


def _kept(part: float) -> Callable[[Sweep], Placement]:
    def placement(sweep: Sweep) -> Placement:
        least = smallest_ring(sweep.sizes, frozenset())
        found = place(sweep.sizes, max(least, round(part * sweep.nbytes)))
        if not isinstance(found, Placement):
            raise UserError(f"--kept {part}: the node needs {found} bytes at least")
        return found

    return placement


def _print(record: Sequence[dict[str, Any]]) -> None:
    rows = [
        [
            row["case"],
            row["trace"],
            milliseconds(row["off_s_per_token"]),
            milliseconds(row["auto_s_per_token"]),
            f"{row['speedup']['median']:.2f} ({row['speedup']['min']:.2f}-{row['speedup']['max']:.2f})",
            f"{row['tokens_per_step']:.1f}",
        ]
        for row in record
    ]
    print_table(["case", "answer", "ms/token off", "auto", "times as fast", "tokens per step"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=Path)
    names = tuple(case.name for case in CASES)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=names, help=", ".join(names))
    parser.add_argument(
        "--traces", type=Path, nargs="+", default=[TRACES / "rewrite.json", TRACES / "story.json"]
    )
    parser.add_argument("--threads", type=int, default=default_threads(), help="of all nodes together")
    parser.add_argument("--kept", type=float, default=0.3, help="part of the weights, where they stream")
    parser.add_argument("--wire", choices=("f32", "bf16", "int8"), default="f32", help="what travels")
    parser.add_argument("--tokens", type=int, default=1000, help="of an answer at most [default: 1000]")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
