"""Starts each contestant for one measurement, and reads its answer."""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .install import NotInstalled, build_llama, make_environment
from .limits import Limit
from .models import DRIVERS, TPIEDGE, Models
from .spread import prompt_ids

_PROMPT_TOKENS = 8
_MAP_RESERVE = 700_000_000
"""What device_map leaves free below the limit: torch and transformers take 450 MB, then layers on their way."""

_HEAP_GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
"""Otherwise glibc keeps freed tensors: disk_offload's heap grows to 0.7-1.9 GB, by chance, and is killed for it."""


@dataclass(frozen=True)
class Answer:
    """Seconds per token of decode, and what else is worth keeping."""

    s_per_token: float
    detail: Mapping[str, object]


@dataclass(frozen=True)
class Contestant:
    """`command` starts it under a limit; `files` are what it reads, to be forgotten by the page cache before.

    `share` is the part of the rounds in which it runs: the slowest needs no more to be told apart. `settings` join
    its environment variables.
    """

    name: str
    command: Callable[[Limit], list[str]]
    read: Callable[[str], Answer]
    files: tuple[Path, ...]
    share: float = 1.0
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """Paths and settings of all contestants."""

    folder: Path
    models: Models
    threads: int
    tokens: int

    @property
    def prompt(self) -> str:
        return ",".join(map(str, prompt_ids(_PROMPT_TOKENS)))

    @property
    def few_tokens(self) -> int:
        """Returns the number of tokens for contestants that take seconds for each."""
        return max(2, self.tokens // 4)


Maker = Callable[[Work], Contestant]
"""Installs and prepares what the contestant needs, or raises NotInstalled."""


def _tpiedge(work: Work) -> Contestant:
    pack = work.models.pack()

    def command(limit: Limit) -> list[str]:
        flags = {
            "--model": pack,
            "--memory": f"{limit.nbytes}B",
            "--threads": work.threads,
            "--prompt-ids": work.prompt,
            "--max-tokens": work.tokens + 1,
        }
        return [str(TPIEDGE), "run", *_flat(flags), "--ignore-eos", "--json"]

    return Contestant("tpiedge", command, read_tpiedge, (pack, *_libraries()))


def _llama_cpp(work: Work) -> Contestant:
    program, model = build_llama(work.folder), work.models.gguf()
    flags = {"-m": model, "-p": 0, "-n": work.tokens, "-r": 1, "-t": work.threads, "-lm": "mmap", "-ngl": 0}
    command = [str(program), *_flat(flags), "-o", "json"]
    return Contestant("llama.cpp", lambda _limit: command, read_llama_bench, (model, program))


def _accelerate(work: Work) -> Contestant:
    checkpoint = work.models.checkpoint()
    python = make_environment(work.folder, "accelerate")
    offload = work.models.offload(python)
    driver = [str(python), str(DRIVERS / "accelerate_disk.py"), "disk_offload"]
    command = [*driver, str(checkpoint), str(offload), *_decoding(work)]
    files = (offload, *_libraries())
    return Contestant("accelerate", lambda _limit: command, read_driver, files, settings=_HEAP_GIVEN_BACK)


def _accelerate_map(work: Work) -> Contestant:
    checkpoint = work.models.checkpoint()
    python = make_environment(work.folder, "accelerate")

    def command(limit: Limit) -> list[str]:
        ram_bytes = max(0, limit.nbytes - _MAP_RESERVE)
        driver = [str(python), str(DRIVERS / "accelerate_disk.py"), "device_map"]
        return [*driver, str(checkpoint), str(ram_bytes), *_decoding(work)]

    files = (*work.models.weights(), *_libraries())
    return Contestant("accelerate device_map", command, read_driver, files)


def _airllm(work: Work) -> Contestant:
    checkpoint = work.models.checkpoint()
    python = make_environment(work.folder, "accelerate", "scipy", "sentencepiece", "airllm")
    split = work.models.split(python)
    driver = [str(python), str(DRIVERS / "airllm_stream.py"), "decode"]
    command = [*driver, str(checkpoint), str(split), *_decoding(work)]
    return Contestant("airllm", lambda _limit: command, read_driver, (split, *_libraries()), share=0.6)


MAKERS: dict[str, Maker] = {
    "tpiedge": _tpiedge,
    "llama.cpp": _llama_cpp,  # next to tpiedge: the closest ratio
    "accelerate": _accelerate,
    "accelerate device_map": _accelerate_map,
    "airllm": _airllm,
}
"""In the order of a round."""


def prepare(
    names: Sequence[str], work: Work, makers: Mapping[str, Maker]
) -> tuple[list[Contestant], dict[str, str]]:
    """Returns the contestants among `names` that are ready, in the makers' order, and why others are not. Raises
    NotInstalled if it is the first."""
    ready: list[Contestant] = []
    missing: dict[str, str] = {}
    for name in (name for name in makers if name in names):
        try:
            ready.append(makers[name](work))
        except NotInstalled as error:
            if name == names[0]:
                raise
            print(f"{name} is left out: {error}", file=sys.stderr)
            missing[name] = str(error)
    return ready, missing


def _decoding(work: Work) -> list[str]:
    return [str(work.threads), str(work.few_tokens), work.prompt]


def _flat(flags: Mapping[str, object]) -> list[str]:
    return [str(word) for pair in flags.items() for word in pair]


def _libraries() -> tuple[Path, ...]:
    """torch's own: the largest part of every Python contestant's program."""
    found = importlib.util.find_spec("torch")
    return (Path(found.origin).parent / "lib",) if found and found.origin else ()


def read_tpiedge(out: str) -> Answer:
    """Reads the output of `tpiedge run --json` with one node."""
    record = json.loads(out)
    node = record["nodes"][0]
    kept = ("peak_rss_bytes", "weight_bytes", "disk_read_bytes", "weight_wait_s", "compute_s")
    detail = {"token_ids": record["token_ids"]} | {name: node[name] for name in kept}
    return Answer(record["s_per_token"], detail)


def read_driver(out: str) -> Answer:
    """Reads the last line of a driver's output; libraries talk before it."""
    record = json.loads(out.splitlines()[-1])
    return Answer(record["s_per_token"], {name: record[name] for name in ("token_ids", "seconds")})


def read_llama_bench(out: str) -> Answer:
    """Reads the output of `llama-bench -o json` with one test: its average is of a whole test, in nanoseconds."""
    (test,) = json.loads(out)
    return Answer(
        test["avg_ns"] / 1e9 / test["n_gen"], {"build": test["build_commit"], "type": test["model_type"]}
    )


def environment(contestant: Contestant) -> dict[str, str]:
    """The environment of its process: no network, no writes beside its modules."""
    kept = {name: value for name, value in os.environ.items() if not re.match("(OMP|MKL|TPIEDGE)_", name)}
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"} | dict(contestant.settings)
