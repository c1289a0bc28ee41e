"""Packs of the reference checkpoints, and their splits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference import Reference
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.spec import model_spec
from tpiedge.pack.share import NodeShare
from tpiedge.pack.source import CheckpointSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import LayerShape
from tpiedge.planner.solve import ShareWeight, parse_shares, partition


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The pack of a reference's checkpoint, in the checkpoint's own precision or in the one that is asked for."""
    known: dict[tuple[str, Precision], Path] = {}

    def find(reference: Reference, precision: Precision | None = None) -> Path:
        stored = precision or (Precision.BF16 if reference.case.dtype == "bf16" else Precision.F32)
        key = reference.case.name, stored
        if key not in known:
            checkpoint = Checkpoint.open(reference.folder)
            spec = model_spec(checkpoint.config)
            checkpoint.check(spec)
            source = CheckpointSource(checkpoint.tensors)
            known[key] = tmp_path_factory.mktemp("packs") / reference.case.name
            write_pack(spec, source, stored, known[key])
            source.close()
        return known[key]

    return find


def split(reference: Reference, shares: str) -> tuple[NodeShare, ...]:
    config = Checkpoint.open(reference.folder).config
    shape = LayerShape(config.num_heads, config.num_kv_heads, -(-config.intermediate_size // 128))
    weights: tuple[ShareWeight, ...] = parse_shares(shares, shares.count(",") + 1)
    return partition(shape, weights)
