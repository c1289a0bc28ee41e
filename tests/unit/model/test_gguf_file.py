import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.errors import UserError
from tpiedge.model.gguf.file import MAX_TENSORS, read_gguf_header
from tpiedge.model.gguf.model import GgufModel
from tpiedge.pack.quantised import BlockTensor

_TOKENS = ["<unk>", "<s>", "</s>", *(f"t{index}" for index in range(20))]
_TEXT = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.scores": [-float(index) for index in range(len(_TOKENS))],
    "tokenizer.ggml.token_type": [2, 3, 3] + [1] * 20,
    "tokenizer.ggml.bos_token_id": 1,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid file with values of many types."""
    return TinyGguf(layers=1, vocab=64, keys=_TEXT).write(tmp_path_factory.mktemp("gguf") / "small.gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def nbytes(found: BlockTensor) -> int:
    return math.prod(found.shape[:-1]) * found.row_nbytes


def tensor(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def file_of(
    keys: list[bytes], tensors: list[bytes], data: int = 0, version: int = 3, claims: Any = None
) -> bytes:
    head = struct.pack("<IQQ", version, *(claims or (len(tensors), len(keys))))
    header = b"GGUF" + head + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + bytes(data)


def test_header_equals_that_of_gguf_package(small: Path) -> None:
    header, reader = read_gguf_header(small), GGUFReader(small)
    for name, found in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        ours, theirs = header.fields.values[name], found.contents()
        assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == theirs
    assert set(header.tensors) == {tensor.name for tensor in reader.tensors}
    for theirs in reader.tensors:
        ours = header.tensors[theirs.name]
        assert (ours.kind, ours.offset, nbytes(ours)) == (
            theirs.tensor_type.name, theirs.data_offset, theirs.n_bytes,
        )  # fmt: skip
        assert ours.shape == tuple(int(size) for size in reversed(theirs.shape))


HUGE = (1 << 63) - 1

BROKEN: list[tuple[bytes, str]] = [
    (b"", "is not a GGUF file"),
    (b"GGML" + bytes(40), "is not a GGUF file"),
    (file_of([], [], version=1), "version 1 of GGUF"),
    (file_of([], [], version=3 << 24), "version 50331648 of GGUF"),
    (file_of([], [], claims=(MAX_TENSORS + 1, 0)), "more than"),
    (file_of([], [], claims=(0, HUGE)), "more than"),
    (file_of([], [], claims=(0, 1))[:24] + text("key"), "goes beyond the file's"),
    (file_of([key("a", 7, b"\1")], [], claims=(0, 3)), "is empty|goes beyond"),
    (file_of([struct.pack("<Q", HUGE)], []), "goes beyond the file's"),
    (file_of([key("a", 8, struct.pack("<Q", HUGE))], []), "goes beyond the file's"),
    (file_of([key("a", 9, struct.pack("<IQ", 0, HUGE))], []), "goes beyond the file's"),
    (file_of([key("a", 9, struct.pack("<IQ", 12, HUGE))], []), "goes beyond the file's"),
    (file_of([key("a", 9, struct.pack("<IQ", 8, HUGE))], []), "more than any model needs"),
    (file_of([key("a", 9, struct.pack("<IQ", 9, 1))], []), "unsupported type 9"),
    (file_of([key("a", 13, bytes(8))], []), "unknown type 13"),
    (file_of([key("a", 7, b"\0"), key("a", 7, b"\0")], []), "'a' occurs twice"),
    (file_of([key("", 7, b"\0")], []), "is empty"),
    (file_of([key("general.alignment", 4, struct.pack("<I", 24))], []), "not a power of two"),
    (file_of([key("general.alignment", 4, bytes(4))], []), "not a power of two"),
    (file_of([], [tensor("t", (), 0, 0)]), "0 dimensions"),
    (file_of([], [tensor("t", (1,) * 5, 0, 0)], 4), "5 dimensions"),
    (file_of([], [tensor("t", (4,), 0, 0)], 12), "ends at byte"),
    (file_of([], [tensor("t", (HUGE, HUGE), 0, 0)], 12), "ends at byte"),
    (file_of([], [tensor("t", (4,), 0, HUGE - 31)], 16), "ends at byte|lies in the way"),
    (file_of([], [tensor("t", (4,), 0, 8)], 32), "lies in the way"),
    (file_of([], [tensor("t", (9,), 0, 0), tensor("u", (4,), 0, 32)], 64), "lies in the way of 't'"),
    (file_of([], [tensor("t", (4,), 0, 0), tensor("t", (4,), 0, 32)], 64), "occurs twice"),
    (file_of([], [tensor("t", (4, 0), 0, 0)], 64), "not whole blocks"),
    (file_of([], [tensor("t", (48, 2), 2, 0)], 64), "not whole blocks of 32"),
    (file_of([], [tensor("t", (256,), 16, 0)], 128), "of the type IQ2_XXS"),
    (file_of([], [tensor("t", (4,), 250, 0)], 128), "of the type 250"),
]


@pytest.mark.parametrize(
    ("data", "message"), BROKEN, ids=[f"{n}-{words}" for n, (_, words) in enumerate(BROKEN)]
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.gguf"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        read_gguf_header(path)
    assert "\n" not in str(caught.value)
    assert "f.gguf" in str(caught.value)


def opened(path: Path, data: bytes) -> GgufModel | str:
    path.write_bytes(data)
    try:
        return GgufModel.open(path)
    except UserError as error:
        return str(error)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_file_is_refused(small: Path, tmp_path: Path, data: Any) -> None:
    whole = small.read_bytes()
    end = max(found.offset + nbytes(found) for found in read_gguf_header(small).tensors.values())
    length = data.draw(st.integers(0, end - 1))
    assert isinstance(opened(tmp_path / "cut.gguf", whole[:length]), str)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.fault("F1", "of GGUF files, too")
def test_flipped_header_bits_give_model_or_one_line_error(small: Path, tmp_path: Path, data: Any) -> None:
    whole = bytearray(small.read_bytes())
    header = min(found.offset for found in read_gguf_header(small).tensors.values())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert "\n" not in str(opened(tmp_path / "flipped.gguf", bytes(whole)))


def test_huge_array_in_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    path.write_bytes(file_of([key("a", 8, struct.pack("<Q", 1 << 30))], []))
    with path.open("r+b") as file:
        file.truncate(1 << 31)  # a hole
    with pytest.raises(UserError, match="the header has more than 67"):
        read_gguf_header(path)
