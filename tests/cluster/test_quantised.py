"""q8 and q4 through the engine: how near they are to the checkpoint, and that no cut of a prompt changes a bit.
(test_bits.py: all splits have the same bits.)"""

import pytest
import torch

from tests.cluster.alone import AloneOf
from tests.cluster.packs import References
from tpiedge.pack.specs import Precision

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
def test_quantised_weights_are_near_the_checkpoint_s(
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
