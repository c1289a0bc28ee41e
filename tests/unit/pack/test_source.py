import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tpiedge.errors import UserError
from tpiedge.pack.source import SourceFile, SourceTensor, TensorSource


@pytest.fixture
def tensor(tmp_path: Path) -> SourceTensor:
    file = tmp_path / "weights"
    file.write_bytes(bytes(8) + np.arange(60, dtype=np.float32).tobytes())
    return SourceTensor(file, "F32", (6, 10), 8, 240)


def test_tensor_rectangles_are_read(tensor: SourceTensor) -> None:
    source = TensorSource({"w": tensor})
    whole = np.arange(60, dtype=np.float32).reshape(6, 10)
    np.testing.assert_array_equal(source.read("w", range(2, 5)), whole[2:5])
    np.testing.assert_array_equal(source.read("w", cols=range(7, 10)), whole[:, 7:])
    np.testing.assert_array_equal(source.read("w"), whole)
    np.testing.assert_array_equal(source.read("w", range(1, 4), range(4, 9)), whole[1:4, 4:9])
    source.close()


def test_unknown_dtype_is_refused_only_on_use(tensor: SourceTensor) -> None:
    source = TensorSource({"w": tensor, "position_ids": replace(tensor, dtype="I64")})
    assert source.dtype("w") == "F32"
    with pytest.raises(UserError, match=r"position_ids of .* is I64; only F32, F16 and BF16"):
        source.dtype("position_ids")
    with pytest.raises(UserError, match="the checkpoint has no tensor x"):
        source.shape("x")


def test_wrong_tensor_size_or_offset_is_refused(tensor: SourceTensor) -> None:
    for lie in ({"nbytes": 244}, {"offset": -8}):
        with pytest.raises(UserError, match="not those of its shape"):
            TensorSource({"w": replace(tensor, **lie)}).shape("w")


def test_fingerprint_is_stable_and_changes_with_mtime(tensor: SourceTensor) -> None:
    def fingerprint() -> str:
        return TensorSource({"w": tensor}).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    os.utime(tensor.file, ns=(1, 1))
    assert fingerprint() != first
    assert fingerprint() == (  # a pack is known again by it, whichever version has made it
        "checkpoint eb9515660d03af053b5ff88f2bcd2a73194235c1e0a7120600d9846bc9a7e159"
    )
    tensor.file.unlink()
    with pytest.raises(UserError, match="No such file"):
        fingerprint()


@pytest.mark.parametrize("offset", [0, 8, 4096, 4099])
@pytest.mark.parametrize("cached", [True, False])
def test_long_reads_are_same_with_and_without_page_cache(tmp_path, offset, cached, monkeypatch):
    data = np.random.default_rng(0).bytes((2 << 20) + 5000)
    (tmp_path / "w").write_bytes(data)
    past = []
    read = SourceFile._past_the_cache
    monkeypatch.setattr(SourceFile, "_past_the_cache", lambda *at: past.append(at) or read(*at))
    with SourceFile(tmp_path / "w") as file:
        if not file.set_direct(True):
            pytest.skip("system: this file system refuses O_DIRECT")
        file.set_direct(False)
        monkeypatch.setattr(file, "_is_cached", lambda _offset: cached)
        found = file.strided(offset, 4096, (512, 1024), np.dtype("<f4"))
        tail = file.strided((1 << 20) + 4999, 1, (1 << 20, 1), np.dtype(np.uint8))  # up to the end
    np.testing.assert_array_equal(
        found.reshape(-1).view(np.uint8), np.frombuffer(data, np.uint8)[offset:][: 2 << 20]
    )
    assert tail.tobytes() == data[(1 << 20) + 4999 :][: 1 << 20]
    assert len(past) == (0 if cached else 2)
