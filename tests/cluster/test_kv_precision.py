"""Quantised keys and values through the engine are near those in f32. (test_bits.py: every split has the same bits.)

The references' random weights make attention sharp and logits close to each other, which quantised keys do not forgive:
the bounds are for them. How much a trained model suffers is measured by `tpiedge eval`.
"""

import pytest

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tpiedge.wire.fields import KVPrecision

# Biases; one KV head for seven query heads; sliding windows; norms of q and k.
KV: list[KVPrecision] = ["f32", "q8", "q4"]
NAMES = ["llama-biases", "yi", "mistral-sliding", "qwen2-tied", "qwen3"]


@pytest.mark.parametrize("name", NAMES)
def test_the_fewer_bits_the_larger_the_error(name: str, references: References, packs: Packs) -> None:
    reference = references(name)
    logits_TV = {}
    for kv in KV:
        with InProcessCluster(packs(reference), split(reference, "1"), kv=kv) as cluster:
            logits_TV[kv] = cluster.logits((*reference.prompt_ids, *reference.greedy_ids))
    exact_TV = logits_TV["f32"]
    errors = [float((logits_TV[kv] - exact_TV).norm() / exact_TV.norm()) for kv in ("q8", "q4")]
    assert 0 < errors[0] < errors[1] / 4 < 0.25
