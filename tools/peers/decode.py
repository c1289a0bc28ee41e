"""llama.cpp against tpiedge with equal bits and threads, in alternation; all weights are in memory, of both at once or
else of one.

On one machine, or on two of a testbed: two nodes of tpiedge, each with a part of every layer, and llama.cpp with half
of its layers on the other machine.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tpiedge.errors import PeerError
from tpiedge.host.device import default_threads
from tpiedge.host.process import cpu_name
from tpiedge.kernels.probes import Probes
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.lab.bench.figures import ask, spread
from tpiedge.lab.testbed.running import emulated
from tpiedge.local.cluster import LocalCluster, launch
from tpiedge.local.layout import Devices, Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.wire.fields import WirePrecision

from .disk import fit_together, forget, remember
from .install import VERSIONS, build_llama, checked
from .models import MIXTURES, SHAPES, TPIEDGE, random_pack
from .random_gguf import write_random_gguf
from .record import printed
from .rpc_server import rpc_server
from .spread import ratios
from .table import decode_table


def _bounds(prefill: float, decode: float) -> Mapping[str, float]:
    return {"prefill 256": prefill, "prefill 512": prefill, "decode": decode}


_REQUIRED = {
    "bf16": _bounds(2.0, 1.0),
    "q8": _bounds(3.3, 1.05),
    "q4": _bounds(2.8, 1.05),
    "q4_k_m": _bounds(1.7, 1.0),
}
"""Precision -> kind of speed -> the least ratio to llama.cpp's."""
_REQUIRED_OF_FAMILIES = dict.fromkeys(("gemma3-1b", "phi4-mini", "gemma4-e2b"), _bounds(1.7, 1.0))
_REQUIRED_OF_FAMILIES |= dict.fromkeys(MIXTURES, _bounds(2.0, 1.0))
"""Shape -> the same, for families other than Llama, in any precision."""
_OF_BANDWIDTH = {"q8": 0.9, "q4": 0.9}
"""Precision -> the least part of the memory's read rate that decoding reaches on one machine."""
_OF_BANDWIDTH_OF_MIXTURES = 0.85
"""The same, of the bytes that a token needs."""
_PROBE_BYTES = 1 << 30
_MOST_BYTES = {"q4_k_m": 1.02}
"""Precision -> the most bytes of weights, in parts of the file's tensors."""
_REQUIRED_OF_TWO = {("7b", "q4"): {"decode": 1.2}}
_DECODE_PROMPT = 1
_DEADLINE_S = 900.0
_LINE = 200
_SERVER: Final = "ggml-rpc-server"
_SENT = "rpc"
"""Where the server keeps what it was sent."""

Keep = Callable[[dict[str, Any]], None]
"""Takes what was found in one setting."""
Speed = Mapping[str, float]
"""Maps "decode" and each "prefill N" of one run to tokens per second."""


@dataclass(frozen=True)
class _Work:
    program: Path
    folder: Path
    prompt_tokens: tuple[int, ...]
    tokens: int
    repeats: int
    testbed: Devices | None
    wire: WirePrecision


@dataclass(frozen=True)
class _Machines:
    """The computers of llama-bench, by default this one alone."""

    prefix: tuple[str, ...] = ()
    flags: Mapping[str, object] = field(default_factory=lambda: {"-ngl": 0})


@dataclass(frozen=True)
class _Round:
    """`memory_bytes_per_s`: the rate of as many threads (None: not measured). `token_bytes`: those of `weight_bytes`
    that a token needs."""

    peer: Speed
    own: Speed
    memory_bytes_per_s: float | None
    weight_bytes: int
    token_bytes: int


def compare_decode(arguments: argparse.Namespace) -> None:
    """Print the record of a whole comparison, or of the rounds before it failed, with its "error".

    Raises UserError, NotInstalled, PeerError, ResourceError.
    """
    settings: list[dict[str, Any]] = []
    record = {
        "llama.cpp": VERSIONS["llama-cpp-python"],
        "processor": cpu_name(),
        "prompt_tokens": arguments.prompt_tokens,
        "tokens": arguments.tokens,
        "repeats": arguments.repeats,
        "testbed": arguments.testbed,
        "wire": arguments.wire,
        "settings": settings,
    }
    with printed(record, settings, None if arguments.json else decode_table):
        _compare_all(arguments, settings.append)


def _compare_all(arguments: argparse.Namespace, keep: Keep) -> None:
    signal.signal(signal.SIGTERM, _end)
    folder = arguments.work / "models" / f"decode-{os.getpid()}"
    testbed = None if arguments.testbed is None else emulated(arguments.testbed, 2)
    program = build_llama(arguments.work)
    if testbed is not None:
        build_llama(arguments.work, _SERVER)
    lengths = (arguments.prompt_tokens, arguments.tokens, arguments.repeats)
    work = _Work(program, folder, *lengths, testbed, arguments.wire)
    folder.mkdir(parents=True)
    try:
        for shape in arguments.shapes:
            for precision in arguments.precisions:
                _compare(shape, precision, arguments.threads or _all_threads(), work, keep)
    finally:
        shutil.rmtree(folder)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # through the blocks that remove files


def _all_threads() -> tuple[int, ...]:
    return tuple(sorted({1, default_threads()}))


def _compare(shape: str, precision: str, threads: Sequence[int], work: _Work, keep: Keep) -> None:
    """One setting after the other, with the same files, which are gone afterwards."""
    gguf, pack = work.folder / "model.gguf", work.folder / "pack"
    print(f"{shape} {precision}: writing random weights for both", file=sys.stderr)
    try:
        gguf_bytes = write_random_gguf(SHAPES[shape], precision, gguf)
        same = [str(TPIEDGE), "import-gguf", str(gguf)]
        command = same if precision == "q4_k_m" else random_pack(shape, precision)
        checked([*command, "--out", str(pack)])
        for count in threads:
            setting = {"shape": shape, "precision": precision, "threads": count, "gguf_bytes": gguf_bytes}
            _alternate(setting, gguf, pack, work, keep)
    finally:
        gguf.unlink(missing_ok=True)
        for folder in (pack, work.folder / _SENT):
            shutil.rmtree(folder, ignore_errors=True)


def _alternate(setting: dict[str, Any], gguf: Path, pack: Path, work: _Work, keep: Keep) -> None:
    """Rounds that both ended are kept, whatever comes after them."""
    name = "{shape} {precision}, {threads} threads".format_map(setting)
    together = work.testbed is not None or fit_together(gguf, pack)
    taken = (_together if together else _one_by_one)(gguf, pack, setting["threads"], work)
    rounds: list[_Round] = []
    with closing(taken):
        try:
            for one in taken:
                rounds.append(one)
                told = f"llama.cpp {_words(one.peer)}, tpiedge {_words(one.own)}"
                print(f"{name}, {len(rounds)} of {work.repeats}: {told}", file=sys.stderr)
        finally:
            if rounds:
                keep({**setting, **_found(setting, rounds, work), "rounds": len(rounds)})


def _found(setting: dict[str, Any], rounds: Sequence[_Round], work: _Work) -> Mapping[str, object]:
    own = [one.own for one in rounds]
    found = report_of_setting([one.peer for one in rounds], own, _required(setting, work))
    most = _MOST_BYTES.get(setting["precision"])
    size = size_of_setting(setting["gguf_bytes"], rounds[0].weight_bytes, most)
    least = _OF_BANDWIDTH.get(setting["precision"])
    if setting["shape"] in MIXTURES:
        least = _OF_BANDWIDTH_OF_MIXTURES
    memory = [one.memory_bytes_per_s for one in rounds if one.memory_bytes_per_s is not None]
    reads = reads_of_setting(memory, [one.own["decode"] * one.token_bytes for one in rounds], least)
    return {**found, "bytes": size, **reads}


def _together(gguf: Path, pack: Path, threads: int, work: _Work) -> Generator[_Round]:
    """llama.cpp loads anew for every run, from the page cache; tpiedge waits meanwhile, without computing."""
    with _cluster(pack, threads, work) as (cluster, model, machines):
        _own_speed(cluster, model, work)  # warm-up; llama-bench has one of its own
        for _ in range(work.repeats):
            peer = _peer_speed(gguf, threads, work, machines)
            yield _round(peer, cluster, model, threads, work)


def _one_by_one(gguf: Path, pack: Path, threads: int, work: _Work) -> Generator[_Round]:
    """Either is alone in memory: tpiedge, too, loads anew for every run."""
    for _ in range(work.repeats):
        forget([pack])
        remember(gguf)
        peer = _peer_speed(gguf, threads, work, _Machines())
        forget([gguf])
        with _cluster(pack, threads, work) as (cluster, model, _):
            _own_speed(cluster, model, work)
            found = _round(peer, cluster, model, threads, work)
        yield found


def _round(peer: Speed, cluster: LocalCluster, model: PreparedModel, threads: int, work: _Work) -> _Round:
    library = kernel_library()
    memory = None
    if library is not None and work.testbed is None:
        memory = Probes(library, _PROBE_BYTES).bytes_per_s(threads)
    held = sum(node.weight_bytes for node in cluster.stats())
    layers = (model.pack.layout(layer).experts for layer in range(model.pack.num_layers))
    unused = sum(one.nbytes // one.count * (one.count - one.chosen) for one in layers if one)
    # A tied model's embedding is among the weights as its head.
    embedding = 0 if model.pack.spec.tied else model.pack.layout("embedding").nbytes
    return _Round(peer, _own_speed(cluster, model, work), memory, held + embedding, held - unused)


def _required(setting: dict[str, Any], work: _Work) -> Mapping[str, float]:
    if work.testbed is None:
        return _REQUIRED_OF_FAMILIES.get(setting["shape"], _REQUIRED[setting["precision"]])
    return _REQUIRED_OF_TWO.get((setting["shape"], setting["precision"]), {})


@contextmanager
def _cluster(
    pack: Path, threads: int, work: _Work
) -> Iterator[tuple[LocalCluster, PreparedModel, _Machines]]:
    """Yields a cluster, its model, and the same machines for llama-bench."""
    model = prepare(str(pack), None, None, None)
    nodes = 1 if work.testbed is None else 2
    layout = Layout(nodes, None, threads, None, testbed=work.testbed, wire=work.wire)
    capacity = max(*(count + 1 for count in work.prompt_tokens), _DECODE_PROMPT + work.tokens + 1)
    plan = plan_cluster(model, layout, capacity)
    with ExitStack() as stack:
        places = () if work.testbed is None else stack.enter_context(work.testbed.places())
        cluster = stack.enter_context(launch(model, layout, plan, capacity, places=places))
        machines = _Machines()
        if places:
            server = work.program.with_name(_SERVER)
            address = stack.enter_context(rpc_server(server, places[1], threads, work.folder))
            # These count from the last one, which is the head: about half of what is to be read for a token.
            flags = {"--rpc": address, "-ngl": model.config.num_layers // 2}
            machines = _Machines(places[0].prefix, flags)
        yield cluster, model, machines


def _own_speed(cluster: LocalCluster, model: PreparedModel, work: _Work) -> Speed:
    """The same as llama-bench: a prompt without an answer, then tokens from an empty context on."""
    found = {}
    for count in work.prompt_tokens:
        found[f"prefill {count}"] = count / ask(cluster, model, count, 1, keep=False).ttft_s
    decode = ask(cluster, model, _DECODE_PROMPT, work.tokens + 1, keep=False)
    return found | {"decode": 1 / (decode.s_per_token or float("inf"))}


def _peer_speed(gguf: Path, threads: int, work: _Work, machines: _Machines) -> Speed:
    flags = {
        "-m": gguf,
        "-p": ",".join(map(str, work.prompt_tokens)),
        "-n": work.tokens,
        "-r": 1,
        "-t": threads,
        **machines.flags,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    command = [*machines.prefix, str(work.program), *words, "-o", "json"]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"llama-bench did not end within {_DEADLINE_S:.0f} s: give fewer tokens") from None
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise PeerError(f"llama-bench ended with status {ended.returncode}: {lines[-1][:_LINE]}")
    return read_speed(ended.stdout)


def read_speed(out: str) -> Speed:
    """Reads the output of `llama-bench -o json` with one test of each length."""
    tests = json.loads(out)
    (decode,) = (test["avg_ts"] for test in tests if test["n_gen"])
    prefill = {f"prefill {test['n_prompt']}": test["avg_ts"] for test in tests if test["n_prompt"]}
    return {**prefill, "decode": decode}


def report_of_setting(
    peer: Sequence[Speed], own: Sequence[Speed], required: Mapping[str, float]
) -> dict[str, object]:
    """Tokens per second of both, and how many times faster tpiedge was, round by round."""
    report: dict[str, object] = {}
    for kind in own[0]:
        theirs, ours = ([speed[kind] for speed in speeds] for speeds in (peer, own))
        found = spread(ratios(ours, theirs))
        report[kind] = {
            "llama_cpp_tokens_per_s": spread(theirs),
            "tpiedge_tokens_per_s": spread(ours),
            "times_faster_than_llama_cpp": found,
            "required": required.get(kind),
            "met": found["median"] >= required[kind] if kind in required else None,
        }
    return report


def size_of_setting(peer: int, own: int, most: float | None) -> dict[str, object]:
    """Bytes of the file's tensors, and of tpiedge's weights with the embedding, whose rows both read on demand."""
    met = None if most is None else own <= most * peer
    return {"llama_cpp": peer, "tpiedge": own, "ratio": own / peer, "at_most": most, "met": met}


def reads_of_setting(
    memory: Sequence[float], own: Sequence[float], least: float | None
) -> Mapping[str, dict[str, object]]:
    """Bytes per second that as many threads read from memory, and that decoding reads; nothing without the first."""
    if not memory:
        return {}
    part = spread(ratios(own, memory))
    met = None if least is None else part["median"] >= least
    return {
        "reads": {
            "memory": spread(memory),
            "tpiedge": spread(own),
            "part": part,
            "at_least": least,
            "met": met,
        }
    }


def _words(speed: Speed) -> str:
    return ", ".join(f"{kind} {rate:.2f}" for kind, rate in speed.items()) + " tokens/s"
