"""Random GGUF files: of the sizes that their own description says, and with numbers that are numbers."""

import numpy as np
import pytest

from tools.peers import random_gguf
from tools.peers.random_gguf import FORMATS, made_up_words, random_tensors, write_random_gguf
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import preset

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    config = preset("tinyllama") | SMALL
    monkeypatch.setattr(random_gguf, "preset", lambda _name: config)
    return ModelConfig.from_huggingface(config, "small")


@pytest.mark.parametrize(("precision", "name"), [("q4", "Q4_0"), ("q8", "Q8_0")])
def test_as_another_reader_sees_it(small, tmp_path, precision, name):
    gguf = pytest.importorskip("gguf", reason="software: no gguf")
    path = tmp_path / "model.gguf"
    write_random_gguf("small", precision, path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(tensors) == 9 * 2 + 3
    assert tensors["blk.1.ffn_down.weight"].tensor_type.name == name
    assert tensors["blk.1.ffn_down.weight"].shape.tolist() == [352, 128]
    assert tensors["output.weight"].tensor_type.name == "Q8_0"
    assert tensors["token_embd.weight"].tensor_type.name == "BF16"
    down = tensors["blk.1.ffn_down.weight"]
    weights = gguf.dequantize(down.data, down.tensor_type)
    assert np.isfinite(weights).all()
    assert 0.01 < weights.std() < 0.05
    np.testing.assert_array_equal(tensors["blk.0.attn_norm.weight"].data, np.ones(128, np.float32))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.gguf"]


def test_a_tokenizer_of_made_up_words(small, tmp_path):
    gguf = pytest.importorskip("gguf", reason="software: no gguf")
    path = tmp_path / "model.gguf"
    write_random_gguf("small", "q4", path, words=True)
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    assert len(tokens) == len(set(tokens)) == 320
    assert (tokens[:4], tokens[131]) == (["<unk>", "<s>", "</s>", "<0x00>"], "\u2581w0")
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert (kinds[:4], kinds[130:]) == ([2, 3, 3, 6], [6] + [1] * 189)
    assert fields["tokenizer.ggml.scores"].contents() == [0.0] * 320
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 2
    assert len(made_up_words(32000)["tokenizer.ggml.tokens"]) == 32000


def test_sizes(small, tmp_path):
    tensors = {tensor.name: tensor for tensor in random_tensors(small, "q4")}
    assert tensors["blk.0.ffn_up.weight"].nbytes == 352 * 128 // 32 * 18
    assert tensors["output.weight"].nbytes == 320 * 128 // 32 * 34
    assert tensors["token_embd.weight"].nbytes == 320 * 128 * 2
    assert tensors["output_norm.weight"].nbytes == 128 * 4
    assert all(tensor.blocks is None for tensor in random_tensors(small, "bf16"))
    assert {blocks.nbytes for blocks in FORMATS.values()} == {18, 34}
