"""Models that the reference table lacks: with text."""

import json
from pathlib import Path

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"

_POSITIONS = 30_000


def build_text_model(folder: Path, **changes: int) -> Path:
    """A random Llama of three layers that says words like "ba" and "zu", with a context of 30,000 positions.

    `changes`: of its configuration, to make it larger.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tests.reference import Case, build

    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(first + second for first in "bcdfghjklmnpqrstvwxz" for second in "aeiou"),
    ]
    shape = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 300,
        "vocab_size": len(words),
        "num_hidden_layers": 3,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    build(Case("babbler", {"model_type": "llama"} | shape | changes, seed=5), folder)
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[:3])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
