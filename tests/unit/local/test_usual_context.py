from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.errors import UserError
from tpiedge.local.layout import Layout, chosen_context, chosen_kv_tokens
from tpiedge.local.prepare import PreparedModel, prepare

# Keys and values of a token: 8 layers, 8 KV heads of 64 numbers in bf16.
KV_TOKEN_BYTES = 8 * 2 * 8 * 64 * 2


def model_of(folder: Path, positions: int) -> PreparedModel:
    shape = TinyGguf(hidden=512, heads=8, kv_heads=8, head_dim=64, layers=8, ffn=320, kinds={"": "Q8_0"})
    shape.keys = {"llama.context_length": positions}
    return prepare(str(shape.write(folder / "tiny.gguf")), None, None, folder / "cache")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    return model_of(tmp_path_factory.mktemp("long"), 131_072)


def test_short_model_context_is_used_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of(tmp_path, 2000)
    assert chosen_context(model, Layout(1, None, 1, 600_000_000), None) == 2000
    said = f"context of {model.public_name}: 2000 tokens, all that the model has"
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize(("memory_gb", "tokens"), [(40, 131_072), (16, 65_536), (4, 16_384), (1, 4096)])
def test_default_context_uses_an_eighth_of_the_memory(long, monkeypatch, capsys, memory_gb, tokens):
    monkeypatch.setattr("tpiedge.local.layout.available_memory_bytes", lambda: 100_000_000_000)
    memory = memory_gb * 1_000_000_000
    found = chosen_context(long, Layout(1, None, 1, memory), None)
    assert found == tokens
    assert (
        found == 4096 or found * KV_TOKEN_BYTES <= memory / 8 < 2 * found * KV_TOKEN_BYTES or memory_gb == 40
    )
    assert (
        f"context of tiny-q8: {tokens} of the model's 131072" in capsys.readouterr().err or tokens == 131_072
    )


def test_kv_tokens_must_hold_at_least_one_context() -> None:
    assert chosen_kv_tokens(4096, None) == 4096
    assert chosen_kv_tokens(4096, 4096) == 4096
    assert chosen_kv_tokens(4096, 100_000) == 100_000
    with pytest.raises(UserError) as refusal:
        chosen_kv_tokens(4096, 4095)
    assert str(refusal.value) == (
        "--kv-tokens 4095 is less than the context of 4096 tokens: give at least 4096, or a smaller --context"
    )
    with pytest.raises(UserError, match="--kv-tokens 4294967296 is out of range: at most 4294967295"):
        chosen_kv_tokens(4096, 1 << 32)


def test_default_context_displaces_no_pinned_weights(
    long: PreparedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(_model: PreparedModel, _layout: Layout, tokens: int) -> SimpleNamespace:
        return SimpleNamespace(needs=[SimpleNamespace(streamed_bytes=max(0, tokens - 20_000), kv_bytes=0)])

    monkeypatch.setattr("tpiedge.local.layout.plan_cluster", plan)
    assert chosen_context(long, Layout(1, None, 1, 700_000_000), None) == 16_384
