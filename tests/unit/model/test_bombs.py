"""Files made to exhaust their reader: refused in one line, by a process whose memory and time are measured."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """What reading a file took, and the line that it ended with ("" where the file was accepted)."""

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


def tensor(shape: Any = (2,), offsets: Any = (0, 8), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


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
    "length 2^63": (lambda: struct.pack("<Q", 1 << 63) + b"{}", "claims 9223372036854775808 bytes"),
    "length 2^64 - 1": (lambda: b"\xff" * 8 + b"{}", "claims 18446744073709551615 bytes"),
    "length of the rest": (lambda: struct.pack("<Q", 3) + b"{}", "claims 3 bytes"),
    "no length": (lambda: b"\0" * 7, "too few for a header"),
    "header over the cap": (lambda: text_of(90 * MB), "the header has 90"),
    "truncated data": (lambda: header({"a": tensor()}, bytes(7)), "tensor 'a': ends at byte"),
    "300,000 tensors": (lambda: many(300_000), "more than"),
    "as many as the commas allow": (lambda: many(99_000), "more than 50000"),
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
    "shape that overflows": (lambda: header({"a": tensor([1 << 40, 1 << 40])}), "tensor 'a': F32"),
    "size that overflows": (lambda: header({"a": tensor([1 << 62])}), "the shape is [4611686018427387904]"),
    "negative size": (lambda: header({"a": tensor([-2])}), "the shape is [-2]"),
    "many dimensions": (lambda: header({"a": tensor([1] * 100_000)}), "the shape is"),
    "overlap": (
        lambda: header({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12)),
        "tensor 'b': overlaps",
    ),
    "hole": (lambda: header({"a": tensor(offsets=(4, 12))}, bytes(12)), "tensor 'a': 4 unused bytes"),
    "trailing bytes": (lambda: header({"a": tensor()}, bytes(9)), "1 bytes lie after the last tensor"),
    "offsets of 2^62": (
        lambda: header({"a": tensor([0], ((1 << 62) - 1, (1 << 62) - 1), "U8")}),
        "tensor 'a'",
    ),
}


@pytest.mark.parametrize("name", list(HEADERS))
def test_a_header(folder: Path, read: Callable[[str, Path], Cost], name: str) -> None:
    make, named = HEADERS[name]
    (folder / "model.safetensors").write_bytes(make())
    cost = read("checkpoint", folder)
    check(cost, named)
    assert not named or cost.said.startswith(str(folder / "model.safetensors"))


INDEXES: dict[str, tuple[bytes, str]] = {
    "too many tensors": (
        b'{"weight_map":{' + b",".join(b'"t%d":"a.safetensors"' % i for i in range(50_001)) + b"}}",
        "lists 50001 tensors",
    ),
    "too many files": (
        b'{"weight_map":{' + b",".join(b'"t%d":"%d.safetensors"' % (i, i) for i in range(10_001)) + b"}}",
        "names 10001 files",
    ),
    "one name again and again": (
        b'{"weight_map":{' + b",".join([b'"t":"a.safetensors"'] * 300_000) + b"}}",
        "'t' occurs twice",
    ),
    "too large": (b'{"weight_map":{"t":"' + b"x" * 11 * MB + b'"}}', "at most 10.0 MB"),
}


@pytest.mark.parametrize("name", list(INDEXES))
def test_an_index(folder: Path, read: Callable[[str, Path], Cost], name: str) -> None:
    data, named = INDEXES[name]
    (folder / "model.safetensors.index.json").write_bytes(data)
    check(read("checkpoint", folder), named)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
    ({"num_hidden_layers": 2**40}, "num_hidden_layers is 1099511627776"),
    ({"num_attention_heads": 3}, "num_attention_heads (3)"),
    ({"num_attention_heads": 6, "hidden_size": 24, "num_key_value_heads": 4}, "num_key_value_heads (4)"),
    ({"vocab_size": 2**40}, "vocab_size is 1099511627776"),
    ({"hidden_size": 2**40}, "hidden_size is 1099511627776"),
    ({"intermediate_size": 2**62}, "intermediate_size is"),
    ({"max_position_embeddings": 2**62}, "max_position_embeddings is"),
    ({"rope_theta": 0}, "rope_theta is 0"),
    ({"rope_theta": float("inf")}, "rope_theta is"),
    ({"layer_types": ["full_attention"] * 200_000, "model_type": "qwen3"}, "layer_types is"),
    ({"eos_token_id": list(range(200_000))}, "eos_token_id is"),
]


@pytest.mark.parametrize(
    ("changes", "named"), CONFIGS, ids=[f"{at} {next(iter(case[0]))}" for at, case in enumerate(CONFIGS)]
)
def test_a_config(
    folder: Path,
    small_config: dict[str, Any],
    read: Callable[[str, Path], Cost],
    changes: dict[str, Any],
    named: str,
) -> None:
    (folder / "config.json").write_text(json.dumps(small_config | changes))
    cost = read("checkpoint", folder)
    check(cost, named)
    assert cost.said.startswith(str(folder / "config.json"))
    assert cost.nbytes < LIMIT_BYTES // 2  # nothing was allocated by its numbers


TOKENIZERS: dict[str, bytes] = {
    "no JSON": b"{" * 90_000,
    "nested lists": b"[" * 700_000,
    "zeros": bytes(8 * MB),
    "no model": b'{"version":"1.0"}',
    "another version": b'{"version":"9.9"}',
    "not UTF-8": b"\xff\xfe",
    "objects": b'{"model":{"x":[' + b'{"a":0},' * 1_000_000 + b"0]}}",
    "numbers": b'{"model":{"x":[' + b"0," * 9_000_000 + b"0]}}",
}


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_a_tokenizer(folder: Path, read: Callable[[str, Path], Cost], name: str) -> None:
    """What reading it takes, its own process takes, within limits."""
    (folder / "tokenizer.json").write_bytes(TOKENIZERS[name])
    check(read("tokenizer", folder), "is not a tokenizer|took too much time or memory")


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template(folder: Path, read: Callable[[str, Path], Cost], name: str) -> None:
    (folder / name).write_bytes(b'{"a":"' + b"x" * 11 * MB)
    check(read("template", folder), "at most")


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
