"""`tpiedge bench kernels` prints the fields it promises; its numbers are not asserted."""

import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.command import run_command
from tests.process.lab.refused import refusal
from tpiedge.kernels.shared_library import kernel_library

SMALL = ("--shapes", "64x192", "--tokens", "2", "--threads", "1", "--repeats", "1")


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, (int, float)):
        yield value


def size_of_picture(path: Path) -> tuple[int, int]:
    """(width, height) of a whole PNG: every chunk has the checksum that it says."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds = 8, []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        body = data[at + 4 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(body)
        kinds.append(body[:4])
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


@pytest.mark.skipif(kernel_library() is None, reason="native: the kernels are not built")
def test_bench_kernels_reports_every_kernel_and_draws_a_roofline(tmp_path: Path) -> None:
    path = tmp_path / "roofline.png"
    ended = run_command("bench", "kernels", *SMALL, "--json", "--png", path)
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert ended.out.count("\n") == 1
    assert all(math.isfinite(number) for number in numbers(record))
    results = record["results"]
    products = [
        (kernel, one)
        for kernel in ("project", "contract", "ffn", "attention")
        for one in ("f32", "bf16", "q8", "q4")
    ]
    wanted = {*products, ("rms_norm", "f32"), ("rope", "f32"), ("swiglu", "f32")}
    assert {(found["kernel"], found["precision"]) for found in results} == wanted
    assert len(results) == len(wanted)
    for found in results:
        assert found["repeats"] == 1
        assert found["seconds"]["median"] > 0
        assert (found["of_read_bandwidth"] is not None) == ((found["kernel"], found["precision"]) in products)
        assert found["of_peak"]["median"] > 0
    assert min(size_of_picture(path)) > 500


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--shapes", "4096"], "write HIDDENxFFN"),
        (["--tokens", "0"], "--tokens '0' is out of range: 1 to 8192"),
        (["--threads", "x"], "--threads 'x' is not a list"),
        (["--precisions", "q5"], "'q5' is none of f32"),
        (["--kernels", "gemm"], "'gemm' is none of project"),
        (["--png", "/nowhere/at/all.png"], "there is no folder"),
    ],
)
def test_bad_flags_give_a_one_line_error(arguments: list[str], complaint: str) -> None:
    status, words = refusal("bench", "kernels", *arguments)
    assert status == 2
    assert complaint in words


def test_operands_exceeding_memory_are_refused() -> None:
    tokens = ",".join(["8192"] * 3000)  # 1.6 TB of activations, which are there together
    shape = ("--shapes", "16384x16384", "--tokens", tokens, "--kernels", "project", "--threads", "1")
    status, words = refusal("bench", "kernels", *shape)
    assert status == 4
    assert "are free: give smaller --shapes" in words
