"""llama-server against `tpiedge master` with equal bits and threads: both run, and are asked in alternation. Where they
do not fit into memory together, either is started anew for its turn.

All weights are in memory. Both get prompts of random token ids, none of which two requests have in common.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.serve_client import MeasuredServer, Streams
from tpiedge.lab.bench.serve_cluster import ClusterWish, own_cluster
from tpiedge.lab.bench.serve_figures import RoundFigures, spread_of
from tpiedge.lab.bench.serve_run import RandomPrompts, ask_alone, by_clients

from .disk import fit_together, forget, remember
from .install import VERSIONS, build_llama, checked
from .llama_server import llama_server
from .models import MIXTURES, SHAPES, random_pack
from .random_gguf import write_random_gguf
from .record import printed

_VOCABULARY = 30_000
_ROOM = 64
"""Tokens of a stream's context that the prompt alone leaves free."""
_REQUIRED_OF_PEER = {16: 1.8}
_REQUIRED_OF_PREFILL = {16: 0.70}
"""Streams -> how many times faster than the peer, and than what part of its own prefill rate, tpiedge has to answer."""
_REQUIRED_OF_MIXTURES = {16: 1.0}
"""The first of these for mixtures, whose streams choose unlike experts: both are bound by memory."""

Measure = Callable[[int], RoundFigures]
"""One round of so many streams."""
Server = Callable[[], AbstractContextManager[Streams]]
"""Opens a running server, or starts it for the block."""


@dataclass(frozen=True)
class ServeRound:
    """One repeat of one number of streams: what both came to, and the rates of a prompt alone just before."""

    peer: RoundFigures
    own: RoundFigures
    peer_prefill: float
    own_prefill: float


@dataclass
class _Contestants:
    #: The peer, and tpiedge.
    servers: tuple[Server, Server]
    wish: argparse.Namespace
    prompts: RandomPrompts = field(default_factory=lambda: RandomPrompts(_VOCABULARY, 0, 0))

    def round(self, streams: int) -> ServeRound:
        """Raises PeerError where a request fails: with less work a server would seem faster."""
        (peer_prefill, peer), (own_prefill, own) = (self._turn(one, streams) for one in self.servers)
        return ServeRound(peer, own, peer_prefill, own_prefill)

    def _turn(self, start: Server, streams: int) -> tuple[float, RoundFigures]:
        with start() as server:
            prefill = ask_alone(server, self._prompt(self.wish.context - _ROOM))
            return prefill, self._figures(server, streams)

    def _figures(self, server: Streams, streams: int) -> RoundFigures:
        prompts = [self._prompt(self.wish.prompt_tokens) for _ in range(self.wish.waves * streams)]
        figures = RoundFigures.of(by_clients(server, prompts, self.wish.tokens, streams), streams)
        if figures.errors:
            raise PeerError(f"{figures.errors} of {figures.requests} requests failed: {figures.error}")
        return figures

    def _prompt(self, tokens: int) -> tuple[int, ...]:
        return self.prompts.of(tokens)


def compare_serve(arguments: argparse.Namespace) -> None:
    """Print the record of a whole comparison, or of the rounds before it failed, with its "error".

    Raises UserError, NotInstalled, PeerError, ResourceError.
    """
    if arguments.prompt_tokens + arguments.tokens > arguments.context:
        raise UserError(f"--prompt-tokens and --tokens do not fit into --context {arguments.context}")
    found: list[dict[str, Any]] = []
    record = {
        "llama.cpp": VERSIONS["llama-cpp-python"],
        "shape": arguments.shape,
        "precision": arguments.precision,
        "threads": arguments.threads,
        "llama_cpp_amx": arguments.amx,
        "prompt_tokens": arguments.prompt_tokens,
        "tokens": arguments.tokens,
        "prefill_tokens": arguments.context - _ROOM,
        "repeats": arguments.repeats,
        "streams": found,
    }
    with printed(record, found):
        _compare(arguments, found)


def _compare(arguments: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    signal.signal(signal.SIGTERM, _end)
    program = build_llama(arguments.work, "llama-server", amx=arguments.amx)
    folder = arguments.work / "models" / f"serve-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        gguf, pack = _models(arguments, folder)
        sizes = (arguments.threads, max(arguments.streams), arguments.context)
        together = fit_together(gguf, pack)

        @contextmanager
        def peer() -> Iterator[Streams]:
            forget([pack])
            remember(gguf)
            with llama_server(program, gguf, *sizes, arguments.llama_options) as server:
                yield from _warm(server, arguments)

        @contextmanager
        def own() -> Iterator[Streams]:
            forget([gguf])
            with own_cluster(_wish(arguments, pack)) as server:
                yield from _warm(server, arguments)

        with ExitStack() as stack:
            servers: tuple[Server, Server] = (peer, own)
            if together:
                servers = _running(stack.enter_context(peer())), _running(stack.enter_context(own()))
            _alternate(_Contestants(servers, arguments), arguments, found)
    finally:
        shutil.rmtree(folder)


def _running(streams: Streams) -> Server:
    return lambda: nullcontext(streams)


def _warm(server: MeasuredServer, arguments: argparse.Namespace) -> Iterator[Streams]:
    """Yields the streams of a server that has answered a long prompt."""
    with Streams(server, MonotonicClock()) as streams:
        ask_alone(streams, RandomPrompts(_VOCABULARY, 1, 0).of(arguments.context - _ROOM))
        yield streams


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # through the blocks that remove files


def _models(arguments: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """Makes models with as many random bits for each."""
    shape, precision = SHAPES[arguments.shape], arguments.precision
    gguf, pack = folder / "model.gguf", folder / "pack"
    print(f"{arguments.shape} {precision}: writing random weights for both", file=sys.stderr)
    write_random_gguf(shape, precision, gguf, words=True)
    checked([*random_pack(arguments.shape, precision), "--out", str(pack)])
    return gguf, pack


def _wish(arguments: argparse.Namespace, pack: Path) -> ClusterWish:
    sizes = ("--threads", str(arguments.threads), "--context", str(arguments.context))
    return ClusterWish(("--model", str(pack), *sizes, *shlex.split(arguments.options)), 0, ())


def _alternate(both: _Contestants, arguments: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Every number of streams once in each repeat. What was measured is kept, whatever comes after."""
    rounds: dict[int, list[ServeRound]] = {streams: [] for streams in arguments.streams}
    try:
        for repeat in range(arguments.repeats):
            for streams in arguments.streams:
                one = both.round(streams)
                rounds[streams].append(one)
                told = f"llama-server {_words(one.peer)}, tpiedge {_words(one.own)}"
                print(f"{streams} streams, {repeat + 1} of {arguments.repeats}: {told}", file=sys.stderr)
    finally:
        is_mixture = arguments.shape in MIXTURES
        found += [report_of_streams(streams, done, is_mixture) for streams, done in rounds.items() if done]


def _words(figures: RoundFigures) -> str:
    return f"{figures.answering_tokens_per_s or 0:.1f} of {figures.tokens_per_s:.1f} tokens/s"


def report_of_streams(streams: int, rounds: Sequence[ServeRound], is_mixture: bool = False) -> dict[str, Any]:
    """Returns both servers' figures and their ratio in each round. "answering": while all streams received an
    answer."""
    report: dict[str, Any] = {"streams": streams, "rounds": len(rounds)}
    for name in ("answering_tokens_per_s", "tokens_per_s"):
        report[name] = _pair(rounds, attrgetter(name))
    report["prefill_tokens_per_s"] = {
        "llama_server": spread([one.peer_prefill for one in rounds]),
        "tpiedge": spread([one.own_prefill for one in rounds]),
        "times_faster_than_llama_server": spread([one.own_prefill / one.peer_prefill for one in rounds]),
    }
    for name in ("first_s", "gap_s"):
        for percent in ("p50", "p99"):
            report[f"{name}_{percent}"] = _pair(rounds, partial(_time, name=name, percent=percent))
    found = report["answering_tokens_per_s"]["times_that_of_llama_server"]
    of_peer, own = _REQUIRED_OF_PEER, _REQUIRED_OF_PREFILL
    if is_mixture:
        of_peer, own = _REQUIRED_OF_MIXTURES, {}
    report["answering_tokens_per_s"] |= _met(found, of_peer.get(streams))
    of_prefill = spread_of(rounds, lambda one: _ratio(one.own.answering_tokens_per_s, one.own_prefill))
    report["answering_to_own_prefill"] = {
        "ratio": of_prefill,
        **_met(of_prefill, own.get(streams)),
    }
    return report


def _pair(rounds: Sequence[ServeRound], figure: Callable[[RoundFigures], float | None]) -> dict[str, Any]:
    return {
        "llama_server": spread_of(rounds, lambda one: figure(one.peer)),
        "tpiedge": spread_of(rounds, lambda one: figure(one.own)),
        "times_that_of_llama_server": spread_of(
            rounds, lambda one: _ratio(figure(one.own), figure(one.peer))
        ),
    }


def _time(figures: RoundFigures, name: str, percent: str) -> float | None:
    found: Mapping[str, float] | None = getattr(figures, name)
    return None if found is None else found[percent]


def _ratio(own: float | None, other: float | None) -> float | None:
    return None if own is None or not other else own / other


def _met(found: Mapping[str, float] | None, required: float | None) -> dict[str, Any]:
    met = None if required is None or found is None else found["median"] >= required
    return {"required": required, "met": met}
