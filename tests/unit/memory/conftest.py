"""A pack of awkward shapes: head_dim 20, hidden 60, FFN 200 (128 + 72), 6 query heads, 3 KV heads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tpiedge.lab.random_weights import RandomSource
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, Sweep
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.layout import Storage, storage_of
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import LayerShape

HIDDEN, FFN, VOCABULARY, HEAD_DIM = 60, 200, 1003, 20
SHAPE = LayerShape(6, 3, 2, 2)
EVERYTHING = SHAPE.whole
MakePack = Callable[..., Pack]


def narrow(sweep: Sweep) -> Placement:
    """Nothing is pinned, and the ring is as small as can be."""
    return Placement(smallest_ring(sweep.sizes, frozenset()), frozenset())


def _layer(at: int) -> BlobSpec:
    shapes = {"q": (120, 20), "k": (60, 20), "v": (60, 20), "o": (120, 20)}
    shapes |= dict.fromkeys(("gate", "up", "down"), (FFN, 128))
    matrices = (
        MatrixSpec(name, f"{at}.{name}", rows, HIDDEN, per_unit, name in ("o", "down"))
        for name, (rows, per_unit) in shapes.items()
    )
    vectors = (VectorSpec("attention_norm", f"{at}.norm", HIDDEN), VectorSpec("q_bias", f"{at}.bias", 120))
    return BlobSpec(tuple(matrices), vectors)


@pytest.fixture
def make_pack(tmp_path: Path) -> MakePack:
    def make(
        precision: Precision | Storage = Precision.F32,
        layers: int = 2,
        distinct: int | None = None,
        tied: bool = False,
    ) -> Pack:
        head = () if tied else (MatrixSpec("head", "head", VOCABULARY, HIDDEN, 128),)
        spec = ModelSpec(
            BlobSpec((MatrixSpec("embedding", "embedding", VOCABULARY, HIDDEN, 128),)),
            tuple(_layer(layer) for layer in range(layers)),
            BlobSpec(head, (VectorSpec("final_norm", "norm", HIDDEN),)),
            {},
        )
        source = RandomSource.for_spec(7, spec, STORED.get(storage_of(precision, spec).layers, "BF16"))
        write_pack(spec, source, precision, tmp_path / "pack", distinct)
        return Pack.open(tmp_path / "pack")

    return make
