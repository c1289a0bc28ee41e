import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tpiedge.errors import ReadFault, UserError
from tpiedge.pack.sources.source import CheckpointSource, SourceTensor


@pytest.fixture
def tensor(tmp_path: Path) -> SourceTensor:
    file = tmp_path / "weights"
    file.write_bytes(bytes(8) + np.arange(60, dtype=np.float32).tobytes())
    return SourceTensor(file, "F32", (6, 10), 8, 240)


def test_rectangles(tensor: SourceTensor) -> None:
    source = CheckpointSource({"w": tensor})
    whole = np.arange(60, dtype=np.float32).reshape(6, 10)
    np.testing.assert_array_equal(source.read_rows("w", 2, 3), whole[2:5])
    np.testing.assert_array_equal(source.read_columns("w", 7, 3), whole[:, 7:])
    np.testing.assert_array_equal(source.read_columns("w", 0, 10), whole)
    np.testing.assert_array_equal(source.read_block("w", 1, 3, 4, 5), whole[1:4, 4:9])
    source.close()


def test_only_tensors_that_are_asked_for_must_be_of_a_known_type(tensor: SourceTensor) -> None:
    source = CheckpointSource({"w": tensor, "position_ids": replace(tensor, dtype="I64")})
    assert source.dtype("w") == "F32"
    with pytest.raises(UserError, match=r"position_ids of .* is I64; only F32, F16 and BF16"):
        source.dtype("position_ids")
    with pytest.raises(UserError, match="the checkpoint has no tensor x"):
        source.shape("x")


def test_a_table_that_lies_about_sizes(tensor: SourceTensor) -> None:
    with pytest.raises(UserError, match="not those of its shape"):
        CheckpointSource({"w": replace(tensor, nbytes=244)}).shape("w")
    with pytest.raises(UserError, match="not those of its shape"):
        CheckpointSource({"w": replace(tensor, offset=-8)}).shape("w")


def test_a_file_that_ends_early(tensor: SourceTensor) -> None:
    os.truncate(tensor.file, 100)
    source = CheckpointSource({"w": tensor})
    with pytest.raises(ReadFault, match="the file ends before"):
        source.read_rows("w", 0, 6)
    with pytest.raises(ReadFault):
        source.read_columns("w", 0, 2)
    source.close()


def test_the_fingerprint_follows_the_file(tensor: SourceTensor) -> None:
    def fingerprint() -> str:
        return CheckpointSource({"w": tensor}).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    os.utime(tensor.file, ns=(1, 1))
    assert fingerprint() != first
    tensor.file.unlink()
    with pytest.raises(UserError, match="No such file"):
        fingerprint()
