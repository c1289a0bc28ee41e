"""A model of awkward shapes: head_dim 20, hidden 60, FFN 200 (128 + 72), vocabulary 1003, 3 KV heads."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.layout import RowLayout
from tpiedge.pack.reader import Pack
from tpiedge.pack.source import SourceTensor, TensorSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec
from tpiedge.pack.writer import write_pack

HEAD_DIM, HIDDEN, FFN, VOCABULARY, HEADS, KV_HEADS = 20, 60, 200, 1003, 6, 3


def build_layer(layer: int) -> BlobSpec:
    at = f"model.layers.{layer}"
    heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return BlobSpec(
        (
            MatrixSpec("q", f"{at}.q_proj.weight", heads, HIDDEN, HEAD_DIM),
            MatrixSpec("k", f"{at}.k_proj.weight", kv, HIDDEN, HEAD_DIM),
            MatrixSpec("v", f"{at}.v_proj.weight", kv, HIDDEN, HEAD_DIM),
            MatrixSpec("o", f"{at}.o_proj.weight", heads, HIDDEN, HEAD_DIM, True),
            MatrixSpec("gate", f"{at}.gate_proj.weight", FFN, HIDDEN, 128),
            MatrixSpec("up", f"{at}.up_proj.weight", FFN, HIDDEN, 128),
            MatrixSpec("down", f"{at}.down_proj.weight", FFN, HIDDEN, 128, True),
        ),
        (
            VectorSpec("attention_norm", f"{at}.input_layernorm.weight", HIDDEN),
            VectorSpec("q_bias", f"{at}.q_proj.bias", heads),
        ),
    )


def build_spec(layers: int = 2, tied: bool = False) -> ModelSpec:
    return ModelSpec(
        BlobSpec((MatrixSpec("embedding", "model.embed_tokens.weight", VOCABULARY, HIDDEN, 128),)),
        tuple(build_layer(layer) for layer in range(layers)),
        BlobSpec(
            () if tied else (MatrixSpec("head", "lm_head.weight", VOCABULARY, HIDDEN, 128),),
            (VectorSpec("final_norm", "model.norm.weight", HIDDEN),),
        ),
        {"hidden_size": HIDDEN, "nested": [1, {"a": None}]},
    )


@pytest.fixture
def spec() -> ModelSpec:
    return build_spec()


@pytest.fixture
def make_spec() -> Callable[..., ModelSpec]:
    return build_spec


@pytest.fixture
def make_pack(tmp_path: Path) -> Callable[..., Pack]:
    def make(precision: Precision = Precision.F32, distinct: int | None = None, **kwargs: object) -> Pack:
        model = build_spec(**kwargs)  # type: ignore[arg-type]
        source = RandomSource.for_spec(7, model, STORED.get(precision, "F32"))
        report = write_pack(model, source, precision, tmp_path / "pack", distinct)
        return Pack.open(report.path)

    return make


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., tuple[TensorSource, dict[str, np.ndarray]]]:
    """A file with every tensor of a spec in a dtype, and the tensors."""

    def make(spec: ModelSpec, dtype: str = "F32") -> tuple[TensorSource, dict[str, np.ndarray]]:
        random = RandomSource.for_spec(3, spec, dtype)  # type: ignore[arg-type]
        arrays: dict[str, np.ndarray] = {}
        for blob in (spec.embedding, *spec.layers, spec.head):
            arrays |= {m.source: random.read(m.source) for m in blob.matrices}
            arrays |= {v.source: random.read(v.source)[0] for v in blob.vectors}
        table, file, offset = {}, tmp_path / "weights", 13
        with file.open("wb") as out:
            out.write(b"x" * offset)
            for name, array in arrays.items():
                table[name] = SourceTensor(file, dtype, array.shape, offset, array.nbytes)
                out.write(array.tobytes())
                offset += array.nbytes
        return TensorSource(table), arrays

    return make


@pytest.fixture
def read_matrix() -> Callable[[Pack, int | str, str], np.ndarray]:
    """A matrix from its bytes in the blob, rows without padding, in the raw bits."""

    def read(pack: Pack, key: int | str, name: str) -> np.ndarray:
        layout = pack.layout(key)  # type: ignore[arg-type]
        matrix = layout.matrix(name)
        assert isinstance(matrix, RowLayout)
        blob = pack.blob_path(key).read_bytes()  # type: ignore[arg-type]
        dtype = np.dtype(f"<u{layout.precision.bits // 8}")
        places = [matrix.row_place(row)[0] for row in range(matrix.rows)]
        return np.stack([np.frombuffer(blob, dtype, matrix.cols, place) for place in places])

    return read
