"""Files made to exhaust their reader: refused in one line, by a process whose memory and time are measured."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tpiedge

MB = 1_000_000
LIMIT_BYTES, LIMIT_S = 100 * MB, 2.0

_PROBE = """
import gc, json, re, sys, time
from pathlib import Path
from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer

READ = {
    "checkpoint": Checkpoint.open,
    "tokenizer": Tokenizer.open,
    "template": lambda folder: ChatTemplate.open(folder, {}),
}

def status(field):
    return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

for line in sys.stdin:
    kind, folder = json.loads(line)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before, begun, said = status("VmRSS"), time.process_time(), ""
    try:
        READ[kind](Path(folder))
    except UserError as error:
        said = str(error)
    took = time.process_time() - begun
    print(json.dumps([said, status("VmHWM") - before, took]), flush=True)
"""


@dataclass(frozen=True)
class Cost:
    """The memory and time of reading a file, and its refusal ("" if the file was accepted)."""

    said: str
    nbytes: int
    seconds: float


@pytest.fixture(scope="module")
def read() -> Iterator[Callable[[str, Path], Cost]]:
    """Read a folder as `kind` in a child process, the same for all, which has imported everything."""
    root = str(Path(tpiedge.__file__).parents[1])
    # The allocator gives back what is free, so that one file is not charged with another's memory.
    allocator = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    with subprocess.Popen(
        [sys.executable, "-c", _PROBE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | allocator | {"PYTHONPATH": root},
    ) as child:

        def run(kind: str, folder: Path) -> Cost:
            child.stdin.write(json.dumps([kind, str(folder)]) + "\n")
            child.stdin.flush()
            return Cost(*json.loads(child.stdout.readline()))

        yield run
        child.stdin.close()
        try:
            assert child.wait(10) == 0
        finally:
            child.kill()


@pytest.fixture(autouse=True)
def _leak_check() -> None:
    """The child belongs to the module."""


def check(cost: Cost, named: str) -> None:
    assert any(one in cost.said for one in named.split("|"))
    assert cost.said.isprintable()
    assert len(cost.said) < 600
    assert cost.nbytes < LIMIT_BYTES
    assert cost.seconds < LIMIT_S


def header(values: object, data: bytes = bytes(8)) -> bytes:
    raw = values if isinstance(values, bytes) else json.dumps(values).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def many(count: int, same_name: bool = False) -> bytes:
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return header(b"{" + b",".join(entry % (0 if same_name else i) for i in range(count)) + b"}", b"")


def text_of(nbytes: int, wide: str = "") -> bytes:
    """One long text as metadata; with one wide character all of its characters take four bytes."""
    return header(b'{"__metadata__":{"a":"' + wide.encode() + b"x" * nbytes + b'"}}', b"")


HEADERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "header over the cap": (lambda: text_of(90 * MB), "the header has 90"),
    "300,000 tensors": (lambda: many(300_000), "more than"),
    "as many as the commas allow": (lambda: many(99_000), "more than 80000"),
    "a name 100,000 times": (lambda: many(99_000, same_name=True), "'t0' occurs twice"),
    "a key 100,000 times": (
        lambda: header(b'{"a":{' + b",".join([b'"dtype":"F32"'] * 300_000) + b"}}"),
        "'dtype' occurs twice",
    ),
    "deep metadata": (lambda: header(b'{"__metadata__":' + b"[" * 4_000_000), "nested too deeply"),
    "deep objects": (lambda: header(b'{"a":' * 1_000_000), "nested too deeply"),
    "objects of one entry": (
        lambda: header(b'{"__metadata__":{"a":[' + b",".join([b'{"a":0}'] * 399_000) + b"]}}"),
        "__metadata__",
    ),
    "a long text": (lambda: text_of(9 * MB), ""),
    "a long text, widened": (lambda: text_of(9 * MB, "\N{FOX FACE}"), ""),
    "a long text, widened by an escape": (lambda: text_of(9 * MB, r"\ud83e\udd8a"), ""),
    "a number of a million digits": (lambda: header(b'{"a":' + b"9" * 1_000_000 + b"}"), "not valid JSON"),
}


@pytest.mark.parametrize("name", list(HEADERS))
def test_hostile_header_costs_little_time_and_memory(
    folder: Path, read: Callable[[str, Path], Cost], name: str
) -> None:
    make, named = HEADERS[name]
    (folder / "model.safetensors").write_bytes(make())
    cost = read("checkpoint", folder)
    check(cost, named)
    assert not named or cost.said.startswith(str(folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("checkpoint", "config.json"),
        ("checkpoint", "generation_config.json"),
        ("checkpoint", "model.safetensors.index.json"),
        ("tokenizer", "tokenizer.json"),
        ("template", "tokenizer_config.json"),
        ("template", "chat_template.jinja"),
    ],
)
def test_a_terabyte_is_refused_unread(
    folder: Path, read: Callable[[str, Path], Cost], kind: str, name: str
) -> None:
    with (folder / name).open("wb" if name != "config.json" else "r+b") as file:
        file.truncate(1 << 40)
    cost = read(kind, folder)
    check(cost, "at most")
    assert cost.nbytes < 10 * MB
