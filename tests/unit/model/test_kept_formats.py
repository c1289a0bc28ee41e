"""GGUF files whose matrices keep their types in a pack: the file's numbers, bit for bit."""

import hashlib
import math
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.model.gguf_files import TinyGguf, some_blocks
from tests.unit.model.test_gguf import checkpoint_numbers, losses, packed
from tools.peers.random_gguf import more_bits
from tpiedge.errors import UserError
from tpiedge.kernels.panels import FORMATS, Codes, PanelShape
from tpiedge.local.catalogue import stored_pack
from tpiedge.memory.loader import EmbeddingTable
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.presets import preset
from tpiedge.model.spec import EMBEDDING, model_spec
from tpiedge.pack.grids import grid_exponents
from tpiedge.pack.layout import BlobLayout, Storage
from tpiedge.pack.manifest import load_manifest
from tpiedge.pack.panel_writer import Quantiser, load_quality
from tpiedge.pack.quantised import BLOCKS, FORMAT_OF, BlockTensor
from tpiedge.pack.reader import verify_pack
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import model_facts

Q8, Q4, Q4_K, Q6_K = Precision.Q8, Precision.Q4, Precision.Q4_K, Precision.Q6_K
DOWN = "model.layers.0.mlp.down_proj.weight"

#: Type -> the first digits of the sha256 of a stored matrix.
GOLDEN = {
    "Q8_0": "c92092245085949b",
    "Q4_0": "4a5ffc4dfafe0546",
    "Q4_1": "f8a63cabb5d12d59",
    "Q5_0": "7be8ad9dfba8d9d0",
    "Q5_1": "df17e6bf842a9cc7",
    "Q4_K": "0f590c378e733a42",
    "Q5_K": "2aacad27f29e30cf",
    "Q6_K": "34e4d933d8deecac",
    "IQ4_NL": "3497cf00e00a5abb",
    "MXFP4": "8e10af4d7962938a",
    "q4_zero": "849a374292777fef",
}


def tiny(kinds: dict[str, str], **changes: Any) -> TinyGguf:
    """Units of 64 inputs (o) and 128 (down) lie in blocks of 256."""
    sizes = {"hidden": 256, "heads": 8, "kv_heads": 2, "head_dim": 64, "ffn": 512, "layers": 1}
    return TinyGguf(kinds=kinds, **(sizes | changes))


def assert_same(back: Any, expected: Any) -> None:
    assert back.keys() == expected.keys()
    for name, values in expected.items():
        assert back[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", FORMAT_OF)
def test_kept_type_is_unpacked_bit_for_bit(tmp_path: Path, kind: str, tied: bool) -> None:
    path = tiny({"": kind}, tied=tied).write(tmp_path / "f.gguf")
    model, kept = GgufModel.open(path), Precision(FORMAT_OF[kind].name)
    pack, back = packed(path, None, tmp_path)
    verify_pack(pack)
    assert pack.storage == Storage(kept, kept, kept)
    numbers = checkpoint_numbers(path, model)
    assert_same(back, numbers)
    assert losses(model, load_quality(pack.path)) == losses(model, None) == []
    with closing(EmbeddingTable(pack)) as table:
        found = table.rows([0, 7, 16, 299, 130]).numpy()
    assert found.tobytes() == numbers[EMBEDDING][[0, 7, 16, 299, 130]].tobytes()
    if kind not in ("Q8_0", "Q4_0"):
        stds = [
            numbers[f"model.layers.0.{name}.weight"].std() for name in ("self_attn.o_proj", "mlp.down_proj")
        ]
        steps = [math.log2(std * math.sqrt(512)) - 16 for std in stds]
        assert np.abs(np.subtract(grid_exponents(pack)[0], steps)).max() < 1.5


def stored_bytes(kind: str, path: Path) -> bytes:
    path.write_bytes(some_blocks(kind, 40, 512).tobytes())
    spec = BlobSpec((MatrixSpec("down", "w", 512, 40, 64, transposed=True),))
    layout = BlobLayout.of(spec, Precision(FORMAT_OF[kind].name))
    with (
        closing(TensorSource({"w": BlockTensor(kind, (40, 512), path, 0)})) as source,
        Quantiser(search=True) as quantiser,
    ):
        return b"".join(part.tobytes() for part in quantiser.parts(layout, source))


@pytest.mark.parametrize("kind", FORMAT_OF)
def test_stored_bytes_match_the_golden_digest(tmp_path: Path, kind: str) -> None:
    assert hashlib.sha256(stored_bytes(kind, tmp_path / "w")).hexdigest()[:16] == GOLDEN[kind]


def test_stored_bytes_of_zero_points_match_the_golden_digest() -> None:
    form, data = FORMATS["q4_zero"], some_blocks("Q4_1", 40, 256)  # 160 bytes a row
    records = np.zeros((40, 4), form.scales.dtype)
    records["s"], records["z"] = np.arange(160).reshape(40, 4) / 128, data[:, :4] % 17
    panels = Codes(form, data[:, 4:132] & 15, records).panels(PanelShape(form, 40, 128))
    assert hashlib.sha256(panels.tobytes()).hexdigest()[:16] == GOLDEN["q4_zero"]


def test_each_matrix_of_a_mixed_file_keeps_its_type(tmp_path: Path) -> None:
    kinds = {"": "Q4_K", "ffn_down": "Q6_K", "blk.1.attn_v": "Q6_K", "output.weight": "Q6_K"}
    kinds |= {"blk.0.attn_q": "F16", "blk.0.attn_k": "Q2_K"}
    path = tiny(kinds, layers=2).write(tmp_path / "f.gguf")
    model, (pack, back) = GgufModel.open(path), packed(path, None, tmp_path)
    storage, layer = pack.storage, "model.layers.{}"
    expected = {layer.format(f"{index}.mlp.down_proj.weight"): Q6_K for index in range(2)}
    expected |= {f"model.layers.0.self_attn.{one}_proj.weight": Q8 for one in "qk"}
    expected["model.layers.1.self_attn.v_proj.weight"] = Q6_K
    assert storage == model.storage(None) == Storage(Q4_K, Q4_K, Q6_K, kept=expected)
    assert storage.label(tied=False) == "kept-q4_k-embedding-q4_k-head-q6_k"
    assert load_manifest(pack.path).storage == storage
    assert pack.layout(0).descriptor()["matrix_precisions"] == {"q": "q8", "k": "q8", "down": "q6_k"}
    numbers = checkpoint_numbers(path, model)
    rounded = {source for source, one in storage.kept.items() if one is Q8}
    assert_same(
        {name: values for name, values in back.items() if name not in rounded},
        {name: values for name, values in numbers.items() if name not in rounded},
    )
    lines = [f"1 matrix of {kind} is rounded to q8" for kind in ("F16", "Q2_K")]
    assert losses(model, None) == lines
    for line, plain in zip(losses(model, load_quality(pack.path)), lines, strict=True):
        assert re.fullmatch(rf"{plain} \(\d\d dB\)", line)
    facts = model_facts(pack, compute="int8", kv="q8")
    assert facts.smaller_precision == "q4"
    assert facts.whole_bytes[0] == sum(
        matrix.nbytes for key in (0, 1) for matrix in pack.layout(key).matrices
    )
    assert model.storage(Q8) == Storage(Q8, Q8, Q8)  # a flag rounds all


@pytest.mark.parametrize(
    ("kind", "heads", "width", "kept"),
    [("Q4_K", 16, 80, Q8), ("Q6_K", 8, 96, Q8), ("Q4_1", 8, 96, Precision.Q4_1), ("MXFP4", 4, 80, Q8),
     ("Q4_K", 8, 32, Q4_K), ("Q4_K", 2, 256, Q4_K), ("Q4_0", 4, 80, Q8)],
)  # fmt: skip
def test_heads_that_cut_blocks_are_rounded(
    tmp_path: Path, kind: str, heads: int, width: int, kept: Precision
) -> None:
    path = tiny({"": kind}, heads=heads, head_dim=width).write(tmp_path / "f.gguf")
    model, (pack, back) = GgufModel.open(path), packed(path, None, tmp_path)
    numbers, o = checkpoint_numbers(path, model), "model.layers.0.self_attn.o_proj.weight"
    assert pack.layout(0).matrix("o").precision is kept
    assert pack.precision is Precision(FORMAT_OF[kind].name)
    np.testing.assert_allclose(back[o], numbers[o], atol=np.abs(numbers[o]).max() / 127)
    del back[o], numbers[o]
    assert_same(back, numbers)
    (line,) = losses(model, load_quality(pack.path)) or [""]
    assert line.startswith(f"1 matrix of {kind} is rounded to q8 (") == (kept is Q8)


def change(path: Path, source: str, at: int, data: bytes) -> None:
    tensor = GgufModel.open(path).tensors[source]
    assert isinstance(tensor, BlockTensor)
    content = bytearray(path.read_bytes())
    content[tensor.offset + at : tensor.offset + at + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(("exponent", "codes"), [(0, 0x7F), (1, 0xF7), (254, 0x95)])
def test_extreme_powers_are_exact(tmp_path: Path, exponent: int, codes: int) -> None:
    path = tiny({"": "MXFP4"}).write(tmp_path / "f.gguf")
    change(path, DOWN, 0, bytes([exponent, *[codes & 0x33 if exponent == 254 else codes] * 16]))
    back = packed(path, None, tmp_path)[1]
    numbers = checkpoint_numbers(path, GgufModel.open(path))
    assert np.isfinite(numbers[DOWN]).all()
    assert numbers[DOWN][0, :32].any()
    assert_same(back, numbers)


@pytest.mark.parametrize(
    ("kind", "at", "data"),
    [
        ("MXFP4", 0, b"\xff"),
        ("MXFP4", 0, b"\xfe\x77"),
        ("Q4_K", 0, b"\x00\x7e"),
        ("Q4_1", 2, b"\x00\x7c"),
        ("Q6_K", 208, b"\x00\xfe"),
    ],
)
def test_scale_that_is_no_number_is_refused_by_name(tmp_path: Path, kind: str, at: int, data: bytes) -> None:
    path = tiny({"": kind}).write(tmp_path / "f.gguf")
    change(path, DOWN, at, data)
    with pytest.raises(
        UserError, match=rf"{DOWN}, .* cannot be kept as {kind.lower()}: .*NaN.*; repair the file or download"
    ) as caught:
        packed(path, None, tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=rf"{DOWN}, row 0 has a weight that is not a finite number"):
        packed(path, Q8, tmp_path)


def test_units_that_cut_blocks_are_refused_by_name(tmp_path: Path) -> None:
    model = GgufModel.open(tiny({"": "Q4_K"}, heads=16, head_dim=80).write(tmp_path / "f.gguf"))
    with closing(TensorSource(model.tensors)) as source, pytest.raises(UserError) as caught:
        write_pack(model_spec(model.config), source, Storage(Q4_K, Q4_K, Q4_K), tmp_path / "pack")
    assert "o_proj" in str(caught.value)
    assert str(caught.value).endswith(
        "cannot be kept as q4_k: the units cut the tensor's blocks; pack with --precision q8"
    )


def test_zero_super_scales_are_kept(tmp_path: Path) -> None:
    path = tiny({"": "Q4_K"}).write(tmp_path / "f.gguf")
    for block in range(8):
        change(path, DOWN, 144 * block, bytes(4))
    back = packed(path, None, tmp_path)[1]
    assert not back[DOWN][:4].any()
    assert_same(back, checkpoint_numbers(path, GgufModel.open(path)))


@pytest.mark.parametrize(("name", "bound"), [("llama3-8b", 1.02), ("tinyllama", 1.0202)])
def test_kept_file_takes_hardly_more_bytes(name: str, bound: float) -> None:
    """Q4_K_M, as llama.cpp chooses types. Units of a head or 128 inputs repeat what a block of 256 has once."""
    spec = model_spec(ModelConfig.from_huggingface(preset(name), name))
    count, own = len(spec.layers), {}
    for index, layer in enumerate(spec.layers):
        more = more_bits(index, count)
        own |= {one.source: Q6_K if more and one.name in ("v", "down") else Q4_K for one in layer.matrices}
    storage, ours, theirs = Storage.keeping(spec, own, Q4_K, Q6_K), 0, 0
    for key, blob in spec.blobs.items():
        layout = storage.layout(key, blob)
        ours += layout.nbytes
        theirs += sum(vector.length * 4 for vector in blob.vectors)
        for matrix in layout.matrices:
            weights, nbytes = BLOCKS[matrix.precision.value.upper()]
            theirs += matrix.rows * matrix.cols // weights * nbytes
    assert theirs < ours <= bound * theirs


def test_kept_packs_folder_names_its_model(tmp_path: Path) -> None:
    for label in ("kept-q4_k-embedding-q4_k-head-q6_k", "q5_1", "q4-plain"):
        assert stored_pack(tmp_path / f"org--m-Q4_K_M-{label}-{'a' * 16}").model == "org/m-Q4_K_M"
