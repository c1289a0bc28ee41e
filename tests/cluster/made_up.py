"""A made-up model of layers that no family has, its random checkpoint, and the plain loop that gives its tokens.

KV heads differ from layer to layer, FFNs have no gate and one of two widths, blocks end with a norm, every node has
all of q and k (their norms run over all heads), o has a bias, and some layers have a window.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from tpiedge.model.blocks import FFN, Attention, Layer
from tpiedge.model.checkpoint import SINGLE, read_header
from tpiedge.model.config import ModelConfig
from tpiedge.model.rope import RopeConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack

WORDS: Final = ("<unk>", "<s>", "</s>", *(a + b for a in "bcdfghjklmnpqrstvwxz" for b in "aeiou"))
_POSITIONS: Final = 4096
SEED: Final = 10
_SLOW, _FAST = (RopeConfig("default", theta, _POSITIONS, _POSITIONS) for theta in (10000.0, 300.0))
#: Five tiles of 128 columns and nine: a node's tiles of one are not twice its tiles of the other.
_NARROW, _WIDE = FFN(600, bias=True, gated=False), FFN(1100, False, "gelu_pytorch_tanh", gated=False)
#: Twelve query heads in groups of 2, 6, 3 or 1: the borders of KV heads differ.
_LAYERS: Final = (
    Layer(Attention(12, 6, 16, _SLOW, None, False, True, row_norms=True), _WIDE),
    Layer(Attention(12, 2, 24, _FAST, 7, True, True, row_norms=True), _NARROW),
    Layer(Attention(12, 4, 8, None, None, False, True, row_norms=True), _NARROW),
    Layer(Attention(12, 2, 24, _SLOW, None, True, False, row_norms=True, keys_of=1), _WIDE),
    Layer(Attention(12, 12, 16, _FAST, 11, False, True, row_norms=True), _NARROW),
)
CONFIG: Final = ModelConfig(
    "llama", 48, len(WORDS), _LAYERS, 1e-5, _POSITIONS, False, 1, (2,), "float32", norms="around"
)
IDS: Final = tuple(3 + 7 * place % 97 for place in range(30))
PROMPT: Final = " ".join(WORDS[token] for token in IDS)


@cache
def _weights() -> Mapping[str, Tensor]:
    """Returns numbers of f32. Large queries and keys make attention uneven. Unit norms and zero biases would hide
    errors."""
    generator, drawn = torch.Generator().manual_seed(SEED), dict[str, Tensor]()
    for name, shape in model_spec(CONFIG).source_shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            drawn[name] = noise if "embed" in name else 2 * noise / shape[1] ** 0.5
        else:
            mean = 0.0 if name.endswith("bias") else 1.7 if "self_attn" in name else 1.0
            drawn[name] = mean + 0.3 * noise
    return MappingProxyType({name: values.double() for name, values in drawn.items()})


def write_made_up(folder: Path, precision: Precision) -> Path:
    """Writes the checkpoint and its pack, which has a tokenizer. Returns the pack."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    save_file({name: values.float() for name, values in _weights().items()}, folder / SINGLE)
    with (folder / SINGLE).open("rb") as file:
        source = TensorSource(read_header(file, folder / SINGLE, "the made-up model")[0])
    pack = write_pack(model_spec(CONFIG), source, precision, folder / "pack").path
    source.close()
    text = pack / TEXT_FOLDER
    text.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(text / "tokenizer.json"))
    (text / "tokenizer_config.json").write_text(json.dumps({"bos_token": WORDS[1], "eos_token": WORDS[2]}))
    return pack


@cache
def plain_answer(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the greedy tokens."""
    text = [*ids]
    for _ in range(count):
        text.append(int(plain_logits(text)[-1].argmax()))
    return tuple(text[len(ids) :])


def plain_logits(ids: Sequence[int]) -> Tensor:
    """Returns [T, vocabulary], of all tokens at once, in f64."""
    x_TH = _weights()["model.embed_tokens.weight"][list(ids)]
    distance_TS = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
    kept: list[list[Tensor]] = []
    for number, layer in enumerate(CONFIG.layers):
        of, name = layer.attention, f"model.layers.{number}"
        h_TH = _norm(x_TH, f"{name}.input_layernorm")
        q_TNd, *own = (
            _heads(h_TH, f"{name}.self_attn", matrix, of) for matrix in ("qkv" if of.keys_of is None else "q")
        )
        kept.append(own if of.keys_of is None else kept[of.keys_of])
        k_SNd, v_SNd = (x.repeat_interleave(of.group_size, 1) for x in kept[number])
        hidden_TS = (distance_TS < 0) | (distance_TS >= (of.window or len(ids)))
        scores_NTS = torch.einsum("tnd,snd->nts", q_TNd, k_SNd) / of.width**0.5
        weights_NTS = scores_NTS.masked_fill(hidden_TS, -torch.inf).softmax(-1)
        mixed_TR = torch.einsum("nts,snd->tnd", weights_NTS, v_SNd).flatten(1)
        y_TH = _linear(mixed_TR, f"{name}.self_attn.o_proj")
        x_TH = x_TH + _norm(y_TH, f"{name}.post_attention_layernorm")
        up_TF = _linear(_norm(x_TH, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp.up_proj")
        gelu = layer.ffn.activation != "silu"
        inner_TF = functional.gelu(up_TF, approximate="tanh") if gelu else functional.silu(up_TF)
        y_TH = _linear(inner_TF, f"{name}.mlp.down_proj")
        x_TH = x_TH + _norm(y_TH, f"{name}.post_feedforward_layernorm")
    return _linear(_norm(x_TH, "model.norm"), "lm_head")


def _heads(h_TH: Tensor, name: str, matrix: str, of: Attention) -> Tensor:
    y_TR = _linear(h_TH, f"{name}.{matrix}_proj")
    if matrix == "v":
        return y_TR.unflatten(1, (-1, of.width))
    y_TNd = _norm(y_TR, f"{name}.{matrix}_norm").unflatten(1, (-1, of.width))
    if of.rope is None:
        return y_TNd
    frequencies = of.rope.theta ** -(torch.arange(0, of.width, 2).double() / of.width)
    angles_T1r = torch.outer(torch.arange(len(h_TH)).double(), frequencies)[:, None]
    a, b = y_TNd.chunk(2, -1)
    cos, sin = angles_T1r.cos(), angles_T1r.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _linear(x: Tensor, name: str) -> Tensor:
    return x @ _weights()[f"{name}.weight"].T + _weights().get(f"{name}.bias", torch.zeros(1))


def _norm(x: Tensor, name: str) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], _weights()[f"{name}.weight"], CONFIG.rms_norm_eps)
