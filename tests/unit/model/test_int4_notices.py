"""What a pack of a GPTQ or AWQ checkpoint holds otherwise than the checkpoint is told."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.model.int4_files import Int4Checkpoint
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.int4_checkpoint import rounded_tensors
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Precision
from tpiedge.pack.sources.imported import open_tensors
from tpiedge.pack.writing.quality import load_quality
from tpiedge.pack.writing.writer import write_pack

_APART = ", because act-order has put the inputs of a group apart"


@pytest.mark.parametrize(
    ("options", "precision", "lines"),
    [
        ({}, None, []),
        ({"symmetric": True}, None, []),
        ({"method": "awq"}, None, []),
        ({"act_order": True, "group": -1}, None, []),
        ({"act_order": True, "group": -1, "head_dim": 48}, None, ["1 matrix of GPTQ is rounded to q8"]),
        ({"act_order": True}, None, [f"7 matrices of GPTQ are rounded to q8{_APART}"]),
        ({"method": "awq"}, Precision.Q4, ["7 matrices of AWQ are rounded to q4"]),
        ({"method": "awq", "head_dim": 48}, None, ["1 matrix of AWQ is rounded to q8"]),
        ({}, Precision.F32, []),
        ({"act_order": True}, Precision.BF16, ["7 matrices of GPTQ are rounded to bf16"]),
    ],
)
def test_what_is_rounded(
    tmp_path: Path, options: dict[str, Any], precision: Precision | None, lines: list[str]
) -> None:
    """The embedding and the head, which were plain, are not told."""
    Int4Checkpoint(**options).write(tmp_path / "m")
    checkpoint = Checkpoint.open(tmp_path / "m")
    assert checkpoint.quantisation is not None
    with closing(open_tensors(checkpoint.tensors)) as source:
        stored = precision or checkpoint.quantisation.precision
        write_pack(model_spec(checkpoint.config), source, stored, tmp_path / "pack")
    quality = load_quality(tmp_path / "pack")
    assert list(rounded_tensors(checkpoint.tensors, checkpoint.quantisation, stored, quality)) == lines
