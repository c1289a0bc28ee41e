import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from tpiedge.errors import UserError
from tpiedge.model.checkpoint import read_header
from tpiedge.pack.source import SourceTensor


def read(path: Path) -> dict[str, SourceTensor]:
    with path.open("rb") as file:
        return read_header(file, path, str(path))[0]


def test_library_files_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.ones((3,), np.float16),
        "none": np.zeros((0, 4), np.float32),
        "one": np.float32([[7]]).reshape(()),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    header = read(path)
    data = path.read_bytes()
    assert set(header) == set(arrays)
    for name, entry in header.items():
        assert entry.shape == arrays[name].shape
        assert data[entry.offset : entry.offset + entry.nbytes] == arrays[name].tobytes()


def tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD: list[tuple[str, bytes, int, str]] = [
    ("not json", b"{", 0, "not valid JSON"),
    ("a list", b"[]", 0, "JSON object"),
    ("not UTF-8", b'{"\xff": 1}', 0, "not valid JSON"),
    ("deep nesting", b'{"a":' * 200_000, 0, "nested too deeply"),
    ("deep metadata", b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 0, "nested too deeply"),
    ("metadata not texts", b'{"__metadata__": {"a": 1}}', 0, "__metadata__"),
    ("same name twice", b'{"a": {}, "a": {}}', 0, "'a' occurs twice"),
    ("same key twice", b'{"a": {"dtype": "F32", "dtype": "F16"}}', 0, "'dtype' occurs twice"),
    ("no dtype", json.dumps({"a": {"shape": [2], "data_offsets": [0, 8]}}).encode(), 8, "tensor 'a'"),
    ("unknown dtype", json.dumps({"a": tensor("F3")}).encode(), 8, "the dtype is 'F3'"),
    ("dtype not a text", json.dumps({"a": tensor(["F32"])}).encode(), 8, "the dtype is"),
    ("negative size", json.dumps({"a": tensor(shape=[-2])}).encode(), 8, "the shape is"),
    ("bool size", json.dumps({"a": tensor(shape=[True, 2])}).encode(), 8, "the shape is"),
    ("float size", json.dumps({"a": tensor(shape=[2.0])}).encode(), 8, "the shape is"),
    ("overflowing shape", json.dumps({"a": tensor(shape=[2**61, 8])}).encode(), 8, "tensor 'a'"),
    ("enormous size", json.dumps({"a": tensor(shape=[2**200])}).encode(), 8, "the shape is"),
    ("size not of shape", json.dumps({"a": tensor(shape=[3])}).encode(), 8, "takes 12 bytes"),
    ("backward offsets", json.dumps({"a": tensor(offsets=[8, 0])}).encode(), 8, "data_offsets"),
    ("three offsets", json.dumps({"a": tensor(offsets=[0, 8, 8])}).encode(), 8, "data_offsets"),
    ("beyond the end", json.dumps({"a": tensor()}).encode(), 4, "unfinished download"),
    ("trailing bytes", json.dumps({"a": tensor()}).encode(), 12, "4 bytes lie after"),
    ("hole", json.dumps({"a": tensor(offsets=[4, 12])}).encode(), 12, "4 unused bytes"),
    ("overlap", json.dumps({"a": tensor(), "b": tensor(offsets=[4, 12])}).encode(), 12, "'b': overlaps"),
    ("name with NUL", json.dumps({"a\0": tensor()}).encode(), 8, "unprintable"),
    ("empty name", json.dumps({"": tensor()}).encode(), 8, "empty"),
    ("long name", json.dumps({"a" * 10_000: tensor()}).encode(), 8, "too long"),
]


@pytest.mark.parametrize(
    ("header", "size", "named"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_malformed_header_is_named(
    tmp_path: Path, make_file: Callable[..., bytes], header: bytes, size: int, named: str
) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(make_file(header, bytes(size)))
    with pytest.raises(UserError, match=named) as raised:
        read(path)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert message.isprintable()
    assert len(message) < 600


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "too few"),
        (b"1234567", "too few"),
        ((2**63).to_bytes(8, "little"), "claims 9223372036854775808 bytes"),
        ((2**64 - 1).to_bytes(8, "little"), "claims"),
        ((100).to_bytes(8, "little") + b"{}", "claims 100 bytes"),
    ],
)
@pytest.mark.fault("F1", "refused with file and tensor")
def test_wrong_header_lengths_are_named(tmp_path: Path, data: bytes, named: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(UserError, match=named):
        read(path)


def test_header_over_the_cap_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    with path.open("wb") as file:
        file.write((90_000_000).to_bytes(8, "little"))
        file.truncate(100_000_000)
    with pytest.raises(UserError, match="the header has 90"):
        read(path)


@settings(max_examples=100)
@given(data=st.data())
@pytest.mark.fault("F1", "any damage is refused or harmless")
def test_damaged_bytes_are_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A file that we accept after damage, the library accepts too, with the same shapes."""
    raw = bytearray(save({"a": np.arange(4, dtype=np.float32), "b": np.ones((2, 2), np.float16)}))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("files") / "a.safetensors"
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])
    try:
        header = read(path)
    except UserError:
        return
    if all(entry.dtype in ("F32", "F16") for entry in header.values()):
        theirs = {name: array.shape for name, array in load_file(path).items()}
        assert {name: entry.shape for name, entry in header.items()} == theirs
