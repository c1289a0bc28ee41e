"""A model like Gemma 4: inputs per layer, a layer's scale, values that are the keys, values with a norm, proportional
rotation, shared keys, heads and FFNs of two widths. It gives the tokens of a plain torch loop, and the same bits for
every split."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from tests.cluster.packs import split_of
from tests.cluster.test_exactness import assert_close
from tests.cluster.test_page_moves import CHANGES, assert_continued
from tests.cluster.test_streaming import PLACEMENTS
from tests.fakes.cluster import InProcessCluster
from tests.unit.kernels.instruction_sets import AVAILABLE
from tpiedge.engine.forward import Engine, kv_cache
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.attention_block import FusedLayers
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.model.blocks import FFN, Attention, Layer, LayerInputs
from tpiedge.model.checkpoint import SINGLE, read_header
from tpiedge.model.config import ModelConfig
from tpiedge.model.families.family import Factors
from tpiedge.model.rope import RopeConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.reader import Pack
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import NodeFacts, model_facts, whole_need

TOKENS = 12
HIDDEN = 48
#: One tile of 128 rows and 8 more.
INPUTS = LayerInputs(136)
SLIDING = Attention(
    12, 4, 16, RopeConfig("default", 1e4, 512, 512), window=9, head_norms=True, value_norms=True
)
FULL = Attention(
    12, 2, 32, RopeConfig("proportional", 300.0, 512, 512, part=0.25),
    head_norms=True, values_from_keys=True, value_norms=True,
)  # fmt: skip
NARROW = FFN(200, activation="gelu_pytorch_tanh")
#: Beyond Gemma, it has biases: a node's are those of its columns.
WIDE = FFN(400, bias=True, activation="gelu_pytorch_tanh")
ATTENTIONS = SLIDING, FULL, SLIDING, FULL, replace(SLIDING, keys_of=2), replace(FULL, keys_of=3)
FFNS = NARROW, NARROW, NARROW, NARROW, WIDE, WIDE
CONFIG = ModelConfig(
    "llama", HIDDEN, 517, tuple(Layer(*one, INPUTS, scaled=True) for one in zip(ATTENTIONS, FFNS, strict=True)),
    0.02, 512, True, None, (), "float32", "around", 0.0, Factors(HIDDEN**0.5, scores=1.0, logit_cap=30.0),
)  # fmt: skip
IDS = tuple(7 * place % 517 for place in range(3, 33))
#: Even and uneven; nodes without heads or columns; more nodes than KV heads or tiles.
SPLITS = ("1", "1,1", "3,1", "1,0:1", "1,5,2", "1:0,0:1,2", "1,1,1,1,1")
QUANTISED = (Precision.Q8, Precision.Q4)

PackOf = Callable[[Precision], Path]


def drawn() -> Mapping[str, Tensor]:
    """Norms and scales are not near 1, as that would hide errors."""
    generator, found = torch.Generator().manual_seed(3), dict[str, Tensor]()
    for name, shape in model_spec(CONFIG).source_shapes.items():
        noise = torch.randn(shape, generator=generator)
        found[name] = 0.8 + 0.3 * noise if len(shape) == 1 else noise * (2 / shape[1] ** 0.5)
    return MappingProxyType(found)


@pytest.fixture(scope="module")
def pack_of(tmp_path_factory: pytest.TempPathFactory) -> PackOf:
    path, known = tmp_path_factory.mktemp("packs") / SINGLE, dict[Precision, Path]()
    save_file(dict(drawn()), path)

    def find(precision: Precision) -> Path:
        if precision not in known:
            with path.open("rb") as file:
                source = TensorSource(read_header(file, path, "the model")[0])
            known[precision] = path.parent / precision.value
            write_pack(model_spec(CONFIG), source, precision, known[precision])
            source.close()
        return known[precision]

    return find


class Plain:
    """The model in f64, all tokens at once. Flags leave parts out."""

    def __init__(self, *without: str) -> None:
        self._weights = {name: values.double() for name, values in drawn().items()}
        self._without = without

    def logits(self, ids: tuple[int, ...]) -> Tensor:
        x_TH = self._weights["model.embed_tokens.weight"][list(ids)] * HIDDEN**0.5
        inputs_TLP, kept = self.inputs(ids), list[tuple[Tensor, Tensor]]()
        for number, layer in enumerate(CONFIG.layers):
            of, name = layer.attention, f"model.layers.{number}"
            window = 9 if of.width == 16 and "window" not in self._without else len(ids)
            h_TH = self._norm(x_TH, f"{name}.input_layernorm")
            q_TNd = self._turned(self._norm(self._heads(h_TH, name, "q", of), f"{name}.self_attn.q_norm"))
            if number < 4:
                k_TKd = self._heads(h_TH, name, "k", of)
                v_TKd = k_TKd if of.width == 32 else self._heads(h_TH, name, "v", of)
                v_TKd = v_TKd if "value norms" in self._without else rms(v_TKd)
                kept.append((self._turned(self._norm(k_TKd, f"{name}.self_attn.k_norm")), v_TKd))
            first = 4 if "last keys" in self._without else 2
            k_TKd, v_TKd = kept[number if number < 4 else number - first]
            k_SNd, v_SNd = (x.repeat_interleave(of.group_size, 1) for x in (k_TKd, v_TKd))
            behind_TS = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
            hidden_TS = (behind_TS < 0) | (behind_TS >= window)
            scores_NTS = torch.einsum("tnd,snd->nts", q_TNd, k_SNd).masked_fill(hidden_TS, -torch.inf)
            out_TNd = torch.einsum("nts,snd->tnd", scores_NTS.softmax(-1), v_SNd)
            y_TH = self._linear(out_TNd.flatten(1), f"{name}.self_attn.o_proj")
            x_TH = x_TH + self._norm(y_TH, f"{name}.post_attention_layernorm")
            h_TH = self._norm(x_TH, f"{name}.pre_feedforward_layernorm")
            gate_TF = gelu(self._linear(h_TH, f"{name}.mlp.gate_proj"))
            inner_TF = gate_TF * self._linear(h_TH, f"{name}.mlp.up_proj")
            y_TH = self._linear(inner_TF, f"{name}.mlp.down_proj")
            x_TH = x_TH + self._norm(y_TH, f"{name}.post_feedforward_layernorm")
            if "inputs" not in self._without:
                inner_TP = gelu(self._linear(x_TH, f"{name}.per_layer_input_gate")) * inputs_TLP[:, number]
                y_TH = self._linear(inner_TP, f"{name}.per_layer_projection")
                x_TH = x_TH + self._norm(y_TH, f"{name}.post_per_layer_input_norm")
            if "scale" not in self._without:
                x_TH = x_TH * self._weights[f"{name}.layer_scalar"]
        logits_TV = self._norm(x_TH, "model.norm") @ self._weights["model.embed_tokens.weight"].T
        return 30 * torch.tanh(logits_TV / 30)

    def inputs(self, ids: tuple[int, ...]) -> Tensor:
        """[T, layers, P]"""
        x_TH = self._weights["model.embed_tokens.weight"][list(ids)] * HIDDEN**0.5
        context_TI = self._linear(x_TH, "model.per_layer_model_projection") * HIDDEN**-0.5
        context_TLP = self._norm(context_TI.unflatten(1, (6, -1)), "model.per_layer_projection_norm")
        token_TI = self._weights["model.embed_tokens_per_layer.weight"][list(ids)] * INPUTS.columns**0.5
        return (context_TLP + token_TI.unflatten(1, (6, -1))) * 2**-0.5

    def _turned(self, x_TNd: Tensor) -> Tensor:
        half, partial = x_TNd.shape[-1] // 2, x_TNd.shape[-1] == 32 and "proportion" not in self._without
        inverse = (300.0 if half == 16 else 1e4) ** (-torch.arange(half).double() / half)
        if partial:
            inverse[4:] = 0
        angles_T1r = torch.outer(torch.arange(len(x_TNd)).double(), inverse)[:, None]
        a, b = x_TNd.chunk(2, -1)
        cos, sin = angles_T1r.cos(), angles_T1r.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def _heads(self, h_TH: Tensor, name: str, matrix: str, of: Attention) -> Tensor:
        return self._linear(h_TH, f"{name}.self_attn.{matrix}_proj").unflatten(1, (-1, of.width))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms(x) * self._weights[f"{name}.weight"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", torch.zeros(1))


def rms(x: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 0.02).rsqrt()


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("part", ["inputs", "scale", "value norms", "last keys", "proportion", "window"])
def test_every_part_changes_the_plain_logits(part: str) -> None:
    expected_TV = Plain().logits(IDS)
    error_T = (Plain(part).logits(IDS) - expected_TV).abs().amax(-1) / expected_TV.abs().amax(-1)
    assert error_T[-1] > 0.01


def test_inputs_are_those_of_the_plain_formula(pack_of: PackOf) -> None:
    with InProcessCluster(pack_of(Precision.F32), split_of(CONFIG, "1")) as cluster:
        _, found_TI = cluster.leader._engine.embedding(IDS)
    assert found_TI is not None
    torch.testing.assert_close(found_TI.double(), Plain().inputs(IDS).flatten(1), rtol=1e-5, atol=1e-5)


#: Every split with weights in memory, and streamed in two ways.
TRIED = [
    (shares, placement)
    for i, shares in enumerate(SPLITS)
    for j, placement in enumerate([None, *PLACEMENTS])
    if placement is None or (i + j) % 3 == 0
]


@pytest.mark.parametrize(("shares", "placement"), TRIED)
def test_tokens_are_those_of_a_plain_loop(shares: str, placement: str | None, pack_of: PackOf) -> None:
    placed = PLACEMENTS[placement] if placement else None
    limits = StepLimits(7, 3) if placement else None
    with InProcessCluster(
        pack_of(Precision.F32), split_of(CONFIG, shares), placement=placed, limits=limits, speculate=3
    ) as cluster:
        text = (*IDS, *cluster.greedy(IDS, TOKENS))
        found_TV = cluster.logits(text)
    expected_TV = Plain().logits(text)
    assert_close(found_TV, expected_TV.numpy())
    assert text[len(IDS) :] == tuple(expected_TV.argmax(-1)[len(IDS) - 1 : -1].tolist())


@pytest.mark.skipif(kernel_library() is None, reason="native: without its kernels bits depend on the split")
@pytest.mark.parametrize("precision", QUANTISED)
def test_bits_are_the_same_for_every_split_and_instruction_set(
    precision: Precision,
    pack_of: PackOf,
    several_sets: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def logits(shares: str, limits: StepLimits | None = None, placement: str | None = None) -> Tensor:
        placed = PLACEMENTS[placement] if placement else None
        with InProcessCluster(
            pack_of(precision), split_of(CONFIG, shares), limits=limits, placement=placed
        ) as cluster:
            return cluster.logits((*IDS, *cluster.greedy(IDS, TOKENS)))

    calls: list[int] = []
    run = FusedLayers.run
    monkeypatch.setattr(FusedLayers, "run", lambda *given: (calls.append(len(given[1])), run(*given))[1])
    expected_TV = logits("1")
    assert calls[: TOKENS - 1] == [1] * (TOKENS - 1), "a token is more than one native call"
    for shares in SPLITS[1:]:
        assert torch.equal(logits(shares), expected_TV), shares
    for placement in PLACEMENTS:
        assert torch.equal(logits("3,1", StepLimits(5, 2), placement), expected_TV), placement
    several_sets(AVAILABLE, (1, 2, 3))
    for shares in ("1,2,1", "1,1,1,1,1"):
        assert torch.equal(logits(shares), expected_TV), shares
    for isa in AVAILABLE:
        several_sets([isa])
        assert torch.equal(logits("1"), expected_TV), isa
    # So do the blocks' own calls, and the separate calls of an attention block.
    monkeypatch.setattr(Engine, "_layers", None)
    assert torch.equal(logits("1"), expected_TV)
    monkeypatch.setattr(Engine, "_new_attention", lambda *_: None)
    assert torch.equal(logits("1,2"), expected_TV)


@pytest.mark.parametrize("change", ["a machine joins", "one leaves", "the master has no heads"])
def test_answers_continue_from_transferred_kv_pages(change: str, pack_of: PackOf, tmp_path: Path) -> None:
    assert change in CHANGES
    assert_continued(IDS, pack_of(Precision.Q4), change, 9, tmp_path)


@pytest.mark.parametrize("shares", SPLITS)
@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q4])
def test_planned_bytes_are_those_that_nodes_have(shares: str, precision: Precision, pack_of: PackOf) -> None:
    pack, parts = Pack.open(pack_of(precision)), split_of(CONFIG, shares)
    facts = replace(model_facts(pack, compute="f32", kv="f32"), capacity_tokens=256)
    assert (facts.row_bytes, facts.input_bytes) == (4 * HIDDEN, 4 * 6 * INPUTS.columns)
    with InProcessCluster(pack.path, parts) as cluster:
        for rank, (share, weights) in enumerate(zip(parts, cluster.weights, strict=True)):
            need = whole_need(facts, rank, share, NodeFacts(1.0))
            assert need.weight_bytes == weights.weight_bytes
            assert need.kv_bytes == kv_cache(CONFIG, share, "f32", 1, 256).reserved_bytes
