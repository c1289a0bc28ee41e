"""q8 and q4 through the engine, of weights or of keys and values: how near they are to the checkpoint, or to f32.
(test_bits.py: all splits have the same bits.) In f32 arithmetic, tokens are transformers' own of the dequantised
weights."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.cluster.alone import AloneOf
from tests.cluster.packs import Packs, References, split
from tests.cluster.test_exactness import assert_close
from tests.fakes.cluster import InProcessCluster
from tests.reference import answered
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.wire.fields import KVPrecision

# Of a head of 12 or 20 and FFN tiles of 44 or 64: groups that are short; a KV head for all; biases; ties; norms of q
# and k; sliding windows.
NAMES = [
    "llama-gqa-odd",
    "openllama",
    "llama-mqa-tied",
    "llama-biases",
    "qwen2-tied",
    "qwen3",
    "mistral-sliding",
]
QUANTISED = [Precision.Q8, Precision.Q4]


@pytest.mark.parametrize("name", NAMES)
def test_quantised_weights_give_logits_near_the_checkpoint(
    name: str, references: References, alone: AloneOf
) -> None:
    reference = references(name)
    expected_TV = torch.from_numpy(reference.logits_TV)
    errors = [
        float((found_TV[: len(expected_TV)] - expected_TV).norm() / expected_TV.norm())
        for found_TV in (alone(name, precision).logits_TV for precision in QUANTISED)
    ]
    assert errors[0] < 0.1
    assert 2 * errors[0] < errors[1] < 0.7


@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("name", NAMES)
def test_f32_arithmetic_gives_tokens_of_transformers_with_dequantised_weights(
    name: str, precision: Precision, references: References, packs: Packs, tmp_path: Path
) -> None:
    reference = references(name)
    pack = packs(reference, precision)
    export_safetensors(Pack.open(pack), tmp_path / "unpacked")
    shutil.copy(reference.folder / "config.json", tmp_path / "unpacked")
    expected = answered(reference.case, tmp_path / "unpacked")
    for shares in ("1", "1,0:1,1"):
        with InProcessCluster(pack, split(reference, shares), compute="f32") as cluster:
            assert tuple(cluster.greedy(expected.prompt_ids, len(expected.greedy_ids))) == expected.greedy_ids
            assert_close(cluster.logits(expected.prompt_ids), expected.logits_TV)


# The references' random weights make attention sharp and logits close, which quantised keys do not forgive.
# Biases; one KV head for seven query heads; sliding windows; norms of q and k.
KV: list[KVPrecision] = ["f32", "q8", "q4"]
OF_KV = ["llama-biases", "yi", "mistral-sliding", "qwen2-tied", "qwen3"]


@pytest.mark.parametrize("name", OF_KV)
def test_kv_cache_error_grows_with_fewer_bits(name: str, references: References, packs: Packs) -> None:
    reference = references(name)
    logits_TV = {}
    for kv in KV:
        with InProcessCluster(packs(reference), split(reference, "1"), kv=kv) as cluster:
            logits_TV[kv] = cluster.logits((*reference.prompt_ids, *reference.greedy_ids))
    exact_TV = logits_TV["f32"]
    errors = [float((logits_TV[kv] - exact_TV).norm() / exact_TV.norm()) for kv in ("q8", "q4")]
    assert 0 < errors[0] < errors[1] / 4 < 0.25
