import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.unit.model.int4_files import Int4Checkpoint, packed
from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Storage
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision

Array = np.ndarray[Any, np.dtype[Any]]


def assert_layers(back: Mapping[str, Array], numbers: Mapping[str, Array], matrices: int = 7) -> None:
    """Every matrix of the layers is what it was, bit for bit."""
    names = [name for name in numbers if "proj" in name]
    assert len(names) == matrices
    for name in names:
        np.testing.assert_array_equal(back[name], numbers[name], err_msg=name)


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize(("method", "symmetric"), [("gptq", True), ("gptq", False), ("awq", False)])
def test_int4_import_is_lossless(tmp_path: Path, method: str, group: int, symmetric: bool) -> None:
    numbers = Int4Checkpoint(method, group, symmetric=symmetric).write(tmp_path / "m")
    assert Checkpoint.open(tmp_path / "m").quantisation is not None
    pack, back = packed(tmp_path / "m")
    assert pack.precision is (Precision.Q4 if symmetric else Precision.Q4_ZERO)
    assert not pack.storage.kept
    assert_layers(back, numbers)


@pytest.mark.parametrize(
    ("method", "symmetric", "said"),
    [
        ("gptq", True, {"dynamic": {r"-:.*mlp\.gate$": {}}}),
        ("gptq", False, {"modules_in_block_to_quantize": None}),
        ("awq", False, {"modules_to_not_convert": ["mlp.gate"]}),
    ],
)
def test_experts_are_kept_beside_a_router_that_is_not_quantised(
    tmp_path: Path, method: str, symmetric: bool, said: dict[str, Any]
) -> None:
    written = Int4Checkpoint(method, 64, symmetric=symmetric, experts=3, ffn=192, quantization=said)
    numbers = written.write(tmp_path / "m")
    assert Checkpoint.open(tmp_path / "m").quantisation is not None
    pack, back = packed(tmp_path / "m")
    assert pack.precision is (Precision.Q4 if symmetric else Precision.Q4_ZERO)
    assert not pack.storage.kept
    assert_layers(back, numbers, 4 + 3 * 3)
    router = "model.layers.0.mlp.gate.weight"
    np.testing.assert_array_equal(back[router], numbers[router])


def test_experts_become_q8_if_one_of_them_does_not_fit(tmp_path: Path) -> None:
    numbers = Int4Checkpoint(group=64, symmetric=True, experts=3, ffn=192).write(tmp_path / "m")
    path, odd = tmp_path / "m" / "model.safetensors", "model.layers.0.mlp.experts.2.down_proj"
    tensors = load_file(path)
    tensors[f"{odd}.scales"] = tensors[f"{odd}.scales"].astype(np.float32) * np.float32(1.0001)
    save_file(tensors, path)
    assert Checkpoint.open(tmp_path / "m").quantisation is not None
    pack, back = packed(tmp_path / "m")
    assert pack.storage.kept == {"model.layers.0.mlp.experts.{}.down_proj.weight": Precision.Q8}
    assert_layers(back, {name: one for name, one in numbers.items() if "down_proj" not in name}, 4 + 3 * 2)
    for expert in range(3):
        name = f"model.layers.0.mlp.experts.{expert}.down_proj.weight"
        close = np.abs(numbers[name]).max() / 127
        np.testing.assert_allclose(back[name], numbers[name], atol=close)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"group": 16}, None),  # groups of panels have 32 inputs
        ({"group": 48}, None),
        ({"scale_dtype": np.float32}, None),  # panels have scales in f16
        ({"hidden": 96, "heads": 4, "head_dim": 24}, {"o": "q8"}),  # heads cut groups
        ({"act_order": True}, None),
        ({"act_order": True, "quantization": {"desc_act": False}}, None),  # the table decides
        ({"act_order": True, "group": -1}, {}),
    ],
)
@pytest.mark.parametrize("symmetric", [True, False])
def test_matrices_that_4_bits_cannot_hold_become_q8(
    tmp_path: Path, changes: dict[str, Any], kept: dict[str, str] | None, symmetric: bool
) -> None:
    numbers = Int4Checkpoint(symmetric=symmetric, **changes).write(tmp_path / "m")
    assert Checkpoint.open(tmp_path / "m").quantisation is not None
    pack, back = packed(tmp_path / "m")
    layers = "q8" if kept is None else "q4" if symmetric else "q4_zero"
    assert pack.precision.value == layers
    found = {m.name: m.precision.value for m in pack.layout(0).matrices if m.precision is not pack.precision}
    assert found == (kept or {})
    for name in (name for name in numbers if "proj" in name):
        np.testing.assert_allclose(back[name], numbers[name], atol=np.abs(numbers[name]).max() / 127)


def test_wider_scales_that_f16_can_hold_are_kept(tmp_path: Path) -> None:
    numbers = Int4Checkpoint().write(tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    wide = {k: v.astype(np.float32) if k.endswith("scales") else v for k, v in load_file(path).items()}
    save_file(wide, path)
    assert Checkpoint.open(tmp_path / "m").quantisation is not None
    pack, back = packed(tmp_path / "m")
    assert pack.storage == Storage.of(Precision.Q4_ZERO, tied=False)
    assert_layers(back, numbers)


def test_gptq_v2_zero_points_have_no_offset(tmp_path: Path) -> None:
    changes = {"checkpoint_format": "gptq_v2"}
    numbers = Int4Checkpoint(zero_offset=0, quantization=changes).write(tmp_path / "m")
    assert_layers(packed(tmp_path / "m")[1], numbers)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; supported are gptq, awq and mxfp4"),
    ({"quant_method": None}, "quant_method is ''; supported are gptq, awq and mxfp4"),
    ({"bits": 3}, "bits is 3; supported is 4"),
    ({"bits": "4"}, "bits is '4', not a whole number"),
    ({"group_size": 0}, "group_size is 0"),
    ({"group_size": -2}, "group_size is -2"),
    ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; supported are gptq, gptq_v2"),
    ({"dynamic": {"-:router": {}, "layer": {"bits": 8}}}, "dynamic gives 'layer' another quantisation"),
    ({"dynamic": ["layer"]}, "dynamic is"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_unsupported_quantisation_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    Int4Checkpoint(quantization=changes).write(tmp_path / "m")
    with pytest.raises(UserError, match=f"config.json, quantization_config: {message}") as caught:
        Checkpoint.open(tmp_path / "m")
    assert "\n" not in str(caught.value)


OLD_AWQ = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}


@pytest.mark.parametrize(
    ("checkpoint", "name", "old"),
    [
        (Int4Checkpoint(symmetric=True), "quantize_config.json", {"damp_percent": 0.01}),
        (Int4Checkpoint("awq", 64), "quant_config.json", OLD_AWQ),
    ],
)
def test_quantisation_config_in_own_file_is_read(
    tmp_path: Path, checkpoint: Int4Checkpoint, name: str, old: dict[str, Any]
) -> None:
    """The parameters are in a file of their own, which the fingerprint follows."""
    folder = tmp_path / "m"
    numbers = checkpoint.write(folder)
    config = json.loads((folder / "config.json").read_text())
    given = config.pop("quantization_config")
    del given["quant_method"]
    if checkpoint.method == "gptq":
        old = given | old
    (folder / "config.json").write_text(json.dumps(config))
    (folder / name).write_text(json.dumps(old))
    assert_layers(packed(folder)[1], numbers)
    before = Checkpoint.open(folder).fingerprint
    (folder / name).write_text(json.dumps(old | {"more": 1}))
    assert Checkpoint.open(folder).fingerprint != before
    (folder / name).write_text(json.dumps(old | {"w_bit": 3, "bits": 3}))
    with pytest.raises(UserError, match=f"{name}, quantization_config: bits is 3; supported is 4"):
        Checkpoint.open(folder)


def open_and_check(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    checkpoint.check(model_spec(checkpoint.config))


def without(tensors: dict[str, Array], name: str) -> dict[str, Array]:
    return {key: value for key, value in tensors.items() if key != name}


_UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("qzeros", None, "qzeros' is missing"),
        ("scales", None, "scales' is missing"),
        ("qweight", None, "mlp.up_proj.weight is missing"),
        ("scales", np.ones((3, 160), np.float16), "do not fit together"),
        ("scales", np.ones((2, 160), np.int32), "is I32 of the shape"),
        ("qzeros", np.ones((2, 19), np.int32), "do not fit together"),
        ("qzeros", np.ones(40, np.int32), "is I32 of the shape"),
        ("qweight", np.ones((8, 160), np.int64), "is I64 of the shape"),
        ("qweight", np.ones((8, 152), np.int32), "do not fit together"),
    ],
)
def test_missing_or_mismatched_parts_are_refused(
    tmp_path: Path, part: str, values: Array | None, message: str
) -> None:
    Int4Checkpoint().write(tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    tensors = without(load_file(path), f"{_UP}.{part}")
    save_file(tensors if values is None else tensors | {f"{_UP}.{part}": values}, path)
    with pytest.raises(UserError, match=message) as caught:
        open_and_check(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_invalid_or_missing_g_idx_is_refused(tmp_path: Path) -> None:
    Int4Checkpoint(act_order=True).write(tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {f"{_UP}.g_idx": np.full(64, 9, np.int32)}, path)
    with (
        closing(TensorSource(Checkpoint.open(tmp_path / "m").tensors)) as source,
        pytest.raises(UserError, match="g_idx names a group that is not there"),
    ):
        source.read(f"{_UP}.weight")
    save_file(without(tensors, f"{_UP}.g_idx"), path)
    with pytest.raises(UserError, match="no usable 'model"):
        Checkpoint.open(tmp_path / "m")
