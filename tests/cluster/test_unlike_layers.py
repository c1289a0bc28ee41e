"""Layers with other numbers of KV heads, heads of other widths, or the keys of an earlier layer: they give the tokens
of a plain torch loop, and the same bits for every split."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.cluster.packs import split_of
from tests.cluster.test_exactness import assert_close
from tests.cluster.test_page_moves import CHANGES, assert_continued
from tests.fakes.cluster import InProcessCluster
from tpiedge.engine.forward import Engine
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.blocks import FFN, Attention, Layer
from tpiedge.model.config import ModelConfig
from tpiedge.model.rope import RopeConfig
from tpiedge.model.rotation import rope_frequencies
from tpiedge.model.spec import model_spec
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack

TOKENS = 12
SLOW, FAST = (RopeConfig("default", theta, 512, 512) for theta in (10000.0, 300.0))
#: Twelve query heads in groups of 2, 6 or 3: the borders of KV heads differ.
ATTENTIONS = (
    Attention(12, 6, 32, SLOW, head_norms=True),
    Attention(12, 2, 48, FAST, window=9, qkv_bias=True),
    Attention(12, 4, 16, None, o_bias=True),
    Attention(12, 6, 32, FAST, head_norms=True, keys_of=0),
    Attention(12, 2, 48, SLOW, qkv_bias=True, keys_of=1),
    Attention(12, 4, 16, FAST),
)
CONFIG = ModelConfig(
    "llama", 48, 517, tuple(Layer(one, FFN(200)) for one in ATTENTIONS), 1e-5, 512, False, None, (), "float32"
)
IDS = tuple(7 * place % 517 for place in range(3, 33))
#: Even and uneven; nodes without heads or columns; more nodes than KV heads of the coarsest layer.
SPLITS = ("1", "1,1", "3,1", "1,0:1", "1,5,2", "1:0,0:1,2", "1,1,1,1,1")

PackOf = Callable[[Precision], Path]


def source() -> RandomSource:
    return RandomSource.for_spec(5, model_spec(CONFIG), "F32", 0.2)


@pytest.fixture(scope="module")
def pack_of(tmp_path_factory: pytest.TempPathFactory) -> PackOf:
    known: dict[Precision, Path] = {}

    def find(precision: Precision) -> Path:
        if precision not in known:
            known[precision] = tmp_path_factory.mktemp("packs") / precision.value
            write_pack(model_spec(CONFIG), source(), precision, known[precision])
        return known[precision]

    return find


def plain_logits(ids: tuple[int, ...]) -> Tensor:
    """[T, vocabulary], of all tokens at once, in f64."""
    weights = {
        name: torch.from_numpy(source().read(name)).double() for name in model_spec(CONFIG).source_shapes
    }
    x_TH, kept = weights["model.embed_tokens.weight"][list(ids)], []

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"][0], CONFIG.rms_norm_eps)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(1))

    for number, layer in enumerate(CONFIG.layers):
        of, name = layer.attention, f"model.layers.{number}.self_attn"

        def heads(x_TH: Tensor, matrix: str, of: Attention = of, name: str = name) -> Tensor:
            x_TNd = linear(x_TH, f"{name}.{matrix}_proj").unflatten(1, (-1, of.width))
            if matrix == "v":
                return x_TNd
            if of.head_norms:
                x_TNd = norm(x_TNd, f"{name}.{matrix}_norm")
            return x_TNd if of.rope is None else turned(x_TNd, of.rope)

        h_TH = norm(x_TH, f"model.layers.{number}.input_layernorm")
        q_TNd = heads(h_TH, "q")
        kept.append((heads(h_TH, "k"), heads(h_TH, "v")) if of.keys_of is None else kept[of.keys_of])
        k_SNd, v_SNd = (x.repeat_interleave(of.group_size, 1) for x in kept[number])
        distance_TS = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
        hidden_TS = (distance_TS < 0) | (distance_TS >= (of.window or len(ids)))
        scores_NTS = torch.einsum("tnd,snd->nts", q_TNd, k_SNd) / of.width**0.5
        weights_NTS = scores_NTS.masked_fill(hidden_TS, -torch.inf).softmax(-1)
        x_TH = x_TH + linear(torch.einsum("nts,snd->tnd", weights_NTS, v_SNd).flatten(1), f"{name}.o_proj")
        mlp = f"model.layers.{number}.mlp"
        h_TH = norm(x_TH, f"model.layers.{number}.post_attention_layernorm")
        gated = functional.silu(linear(h_TH, f"{mlp}.gate_proj")) * linear(h_TH, f"{mlp}.up_proj")
        x_TH = x_TH + linear(gated, f"{mlp}.down_proj")
    return linear(norm(x_TH, "model.norm"), "lm_head")


def turned(x_TNd: Tensor, rope: RopeConfig) -> Tensor:
    frequencies = torch.from_numpy(rope_frequencies(rope, x_TNd.shape[2])[0]).double()
    angles_T1r = torch.outer(torch.arange(len(x_TNd)).double(), frequencies)[:, None]
    a, b = x_TNd.chunk(2, -1)
    return torch.cat(
        (a * angles_T1r.cos() - b * angles_T1r.sin(), b * angles_T1r.cos() + a * angles_T1r.sin()), -1
    )


@pytest.mark.parametrize("shares", SPLITS)
def test_unlike_layers_give_the_tokens_of_a_plain_loop(shares: str, pack_of: PackOf) -> None:
    with InProcessCluster(pack_of(Precision.F32), split_of(CONFIG, shares)) as cluster:
        text = (*IDS, *cluster.greedy(IDS, TOKENS))
        found_TV = cluster.logits(text)
    expected_TV = plain_logits(text)
    assert_close(found_TV, expected_TV.numpy())
    assert text[len(IDS) :] == tuple(expected_TV.argmax(-1)[len(IDS) - 1 : -1].tolist())


@pytest.mark.skipif(kernel_library() is None, reason="native: without its kernels bits depend on the split")
def test_unlike_layers_have_the_same_bits_for_every_split(
    pack_of: PackOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(shares: str) -> Tensor:
        with InProcessCluster(pack_of(Precision.Q4), split_of(CONFIG, shares)) as cluster:
            text = (*IDS, *cluster.greedy(IDS, TOKENS))
            return cluster.logits(text)

    expected_TV = logits("1")
    for shares in SPLITS[1:]:
        assert torch.equal(logits(shares), expected_TV), shares
    monkeypatch.setattr(Engine, "_layers", None)
    assert torch.equal(logits("1"), expected_TV)


@pytest.mark.parametrize("change", [*CHANGES, "more nodes than KV heads"])
def test_unlike_layers_continue_from_transferred_kv_pages(
    change: str, pack_of: PackOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = "1,2,1,2", ("", "ann", "bob", "eve"), "5,1,3,3", ("", "bob", "ann", "joe")
    monkeypatch.setitem(CHANGES, "more nodes than KV heads", shares)
    assert_continued(IDS, pack_of(Precision.Q4), change, 9, tmp_path)
