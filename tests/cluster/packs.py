"""Packs of the reference checkpoints, and their splits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference import Reference
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.share import NodeShare
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import LayerShape
from tpiedge.planner.solve import ShareWeight, parse_shares, partition

References = Callable[[str], Reference]
Packs = Callable[..., Path]


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Packs:
    known: dict[tuple[str, Precision], Path] = {}

    def find(reference: Reference, precision: Precision | None = None) -> Path:
        stored = precision or (Precision.BF16 if reference.case.dtype == "bf16" else Precision.F32)
        key = reference.case.name, stored
        if key not in known:
            to = tmp_path_factory.mktemp("packs") / reference.case.name
            known[key] = packed(reference.folder, stored, to)
        return known[key]

    return find


def packed(folder: Path, precision: Precision, to: Path) -> Path:
    checkpoint = Checkpoint.open(folder)
    source = TensorSource(checkpoint.tensors)
    write_pack(model_spec(checkpoint.config), source, precision, to)
    source.close()
    return to


def split(reference: Reference, shares: str) -> tuple[NodeShare, ...]:
    return shares_of(reference.folder, shares)


def shares_of(folder: Path, shares: str) -> tuple[NodeShare, ...]:
    return split_of(Checkpoint.open(folder).config, shares)


def split_of(config: ModelConfig, shares: str) -> tuple[NodeShare, ...]:
    kv_heads = min(layer.attention.kv_heads for layer in config.layers)
    shape = LayerShape(config.num_heads, kv_heads, -(-config.intermediate_size // 128))
    weights: tuple[ShareWeight, ...] = parse_shares(shares, shares.count(",") + 1)
    return partition(shape, weights)
