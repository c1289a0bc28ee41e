"""Packs of the reference checkpoints, and their splits."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reference import Case, Reference
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.share import NodeShare
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import LayerShape
from tpiedge.planner.solve import ShareWeight, parse_shares, partition

#: Of 1, 2, 3 and 5 nodes, the even ones first; "0:1" helps with the FFN only, "1:0" with attention only.
SPLITS = (
    ("1",),
    ("1,1", "3,1", "1,0:1"),
    ("1,1,1", "1,5,2", "1:0,0:1,2"),
    ("1,1,1,1,1", "5,0.1,1,1,2", "1,0:3,1,0:1,1"),
)

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


def packed(folder: Path, precision: Precision | None, to: Path) -> Path:
    """Returns the checkpoint's pack. Without `precision`, quantised matrices keep their formats."""
    checkpoint = Checkpoint.open(folder)
    source = TensorSource(checkpoint.tensors)
    write_pack(model_spec(checkpoint.config), source, checkpoint.storage(precision), to)
    source.close()
    return to


def split(reference: Reference, shares: str) -> tuple[NodeShare, ...]:
    return shares_of(reference.folder, shares)


def shares_of(folder: Path, shares: str) -> tuple[NodeShare, ...]:
    return split_of(Checkpoint.open(folder).config, shares)


def split_of(config: ModelConfig, shares: str) -> tuple[NodeShare, ...]:
    kv_heads = min(layer.attention.kv_heads for layer in config.layers)
    columns = min((layer.ffn.columns for layer in config.layers if layer.ffn), default=0)
    of_experts = min((layer.experts.columns for layer in config.layers if layer.experts), default=0)
    tiles, experts = -(-columns // 128), -(-of_experts // 64)
    shape = LayerShape(config.num_heads, kv_heads, tiles, config.num_layers, experts)
    weights: tuple[ShareWeight, ...] = parse_shares(shares, shares.count(",") + 1)
    return partition(shape, weights)


def sampled(cases: Iterable[Case]) -> Iterator[tuple[str, str, bool, int]]:
    """Yields (name, shares, whether weights stream, round 0 or 1). Each family has all numbers of nodes, even and
    uneven shares, and streams or not in each round. Each case is in both rounds."""
    names: dict[object, list[str]] = {}
    for case in cases:
        text: Any = case.config.get("text_config", case.config)
        names.setdefault(text["model_type"], []).append(case.name)
    for number, own in enumerate(names.values()):
        turns, step = 4 if len(own) == 1 else 2, len(own) if len(own) % 4 else 1
        for turn in range(turns):
            for at, name in enumerate(own):
                group = (at + turn * step) % 4
                shares = SPLITS[group][(number + group + at // 4) % len(SPLITS[group])]
                yield name, shares, (number + turn + at) % 2 > 0, 2 * turn // turns
