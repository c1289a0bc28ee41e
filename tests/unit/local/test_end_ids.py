"""Which tokens end the answers of a model that was opened."""

import json
from pathlib import Path

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.local.prepare import prepare
from tpiedge.model.source import resolve_model


def test_a_checkpoint_whose_tokenizer_has_another_end(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in resolve_model("demo").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").unlink(missing_ok=True)
    plain = prepare(str(folder), None, None, tmp_path)
    own = plain.config.eos_ids
    config = json.loads((folder / "tokenizer_config.json").read_text())
    letter = next(text for text in ("a", "e", "t") if plain.tokenizer.token_id(text) is not None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": letter}))
    changed = prepare(str(folder), None, None, tmp_path)
    assert plain.end_ids[: len(own)] == changed.end_ids[: len(own)] == own
    assert set(changed.end_ids) - set(plain.end_ids) == {changed.tokenizer.token_id(letter)}


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
