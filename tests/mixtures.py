"""A small model with experts, and packs of it: five experts of 200 columns (three tiles and a short one), two of them
for a token, and an FFN in the second of four layers."""

from pathlib import Path
from typing import Any

from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import LayerShape

HIDDEN, COLUMNS, COUNT, CHOSEN = 96, 200, 5, 2
#: Four query heads, two KV heads, three tiles of the FFN, four of each expert.
SHAPE = LayerShape(4, 2, 3, 4, 4)
VALUES: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": HIDDEN,
    "intermediate_size": 300,
    "moe_intermediate_size": COLUMNS,
    "num_experts": COUNT,
    "num_experts_per_tok": CHOSEN,
    "mlp_only_layers": [1],
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "norm_topk_prob": True,
}
CONFIG = ModelConfig.from_huggingface(VALUES)
SPEC = model_spec(CONFIG)


def mixed_pack(path: Path, precision: Precision, distinct: int | None = None) -> Pack:
    source = RandomSource.for_spec(3, SPEC, STORED.get(precision, "BF16"))
    write_pack(SPEC, source, precision, path, distinct)
    return Pack.open(path)
