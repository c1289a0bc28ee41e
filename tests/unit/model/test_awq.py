"""AWQ checkpoints: the numbers of the published layout, exactly, also in packs that can hold them."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.unit.model.int4_files import Int4Checkpoint, exported
from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.spec import model_spec
from tpiedge.pack.source import CheckpointSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_nothing_is_lost_in_eight_bits(tmp_path: Path, group: int) -> None:
    numbers = Int4Checkpoint("awq", group).write(tmp_path / "m")
    checkpoint = Checkpoint.open(tmp_path / "m")
    assert checkpoint.quantisation is not None
    assert checkpoint.quantisation.precision is Precision.Q8
    spec = model_spec(checkpoint.config)
    checkpoint.check(spec)
    with closing(CheckpointSource(checkpoint.tensors)) as source:
        write_pack(spec, source, Precision.Q8, tmp_path / "pack")
    back = exported(tmp_path / "pack", tmp_path / "back")
    for name, values in numbers.items():
        if "proj" in name:
            np.testing.assert_array_equal(back[name], values, err_msg=name)


def test_the_file_of_before(tmp_path: Path) -> None:
    """quant_config.json beside a config.json that says nothing."""
    numbers = Int4Checkpoint("awq", 64).write(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    old = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "m" / "quant_config.json").write_text(json.dumps(old))
    checkpoint = Checkpoint.open(tmp_path / "m")
    with closing(CheckpointSource(checkpoint.tensors)) as source:
        for name, values in numbers.items():
            found = (
                source.read_rows(name, 0, values.shape[0]) if values.ndim == 2 else source.read_vector(name)
            )
            np.testing.assert_array_equal(found.astype(np.float32), values, err_msg=name)
    (tmp_path / "m" / "quant_config.json").write_text(json.dumps(old | {"version": "gemm"}))
    assert Checkpoint.open(tmp_path / "m").fingerprint != checkpoint.fingerprint
    (tmp_path / "m" / "quant_config.json").write_text(json.dumps(old | {"w_bit": 3}))
    with pytest.raises(
        UserError, match=r"quant_config\.json, quantization_config: bits is 3; supported is 4"
    ):
        Checkpoint.open(tmp_path / "m")
