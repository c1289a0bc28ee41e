"""Packs of the reference checkpoints, and their splits."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference import Reference
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.spec import model_spec
from tpiedge.pack.layout import Precision
from tpiedge.pack.share import NodeShare
from tpiedge.pack.source import CheckpointSource
from tpiedge.pack.writer import write_pack
from tpiedge.planner.partition import Shape, Weight, parse_shares, partition

__all__ = ["packs", "split"]


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Reference], Path]:
    """The pack of a reference's checkpoint, in the checkpoint's own precision."""
    known: dict[str, Path] = {}

    def find(reference: Reference) -> Path:
        name = reference.case.name
        if name not in known:
            checkpoint = Checkpoint.open(reference.folder)
            spec = model_spec(checkpoint.config)
            checkpoint.check(spec)
            precision = Precision.BF16 if reference.case.dtype == "bf16" else Precision.F32
            source = CheckpointSource(checkpoint.tensors)
            known[name] = tmp_path_factory.mktemp("packs") / name
            write_pack(spec, source, precision, known[name])
            source.close()
        return known[name]

    return find


def split(reference: Reference, shares: str) -> tuple[NodeShare, ...]:
    config = Checkpoint.open(reference.folder).config
    shape = Shape(config.num_heads, config.num_kv_heads, -(-config.intermediate_size // 128))
    weights: tuple[Weight, ...] = parse_shares(shares, shares.count(",") + 1)
    return partition(shape, weights)
