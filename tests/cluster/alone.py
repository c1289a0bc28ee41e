"""Answers of one node with quantised weights, for comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.pack.specs import Precision

TOKENS = 12


@dataclass(frozen=True)
class Alone:
    """A text of prompt and answer, and [T, vocabulary] at each of its positions."""

    pack: Path
    layers: int
    text: tuple[int, ...]
    logits_TV: torch.Tensor

    @property
    def answer(self) -> tuple[int, ...]:
        return self.text[-TOKENS:]


AloneOf = Callable[..., Alone]


@pytest.fixture(scope="session")
def alone(references: References, packs: Packs) -> AloneOf:
    known: dict[tuple[str, Precision], Alone] = {}

    def find(name: str, precision: Precision) -> Alone:
        if (name, precision) not in known:
            reference = references(name)
            pack = packs(reference, precision)
            layers = Checkpoint.open(reference.folder).config.num_layers
            with InProcessCluster(pack, split(reference, "1")) as cluster:
                text = (*reference.prompt_ids, *cluster.greedy(reference.prompt_ids, TOKENS))
                known[name, precision] = Alone(pack, layers, text, cluster.logits(text))
        return known[name, precision]

    return find
