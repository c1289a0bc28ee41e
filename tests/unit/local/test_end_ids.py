import json
from pathlib import Path

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.local.prepare import prepare


def test_an_end_beyond_the_models_rows_is_none(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "<|im_end|>"],
        "tokenizer.ggml.scores": [0.0] * 6,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 4],
    }
    model = prepare(str(TinyGguf(vocab=6, keys=keys).write(tmp_path / "m.gguf")), None, None, tmp_path)
    assert model.end_ids == (2, 5)
    assert model.tokenizer.encode("a") == [1, 3, 4]
    folder = model.pack.path / "text"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|new|>"}))
    beyond = prepare(str(model.pack.path), None, None, tmp_path)
    assert (beyond.tokenizer.eos_id, beyond.end_ids) == (6, (2, 5))
