"""Describes what a model computes: a list of layers, each of which is an attention block and an FFN block, or one of
experts, or both side by side. Pure data.

A block computes y = f(norm(x)) and then x += factor * norm(y + bias). A norm that a model lacks is left out.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from tpiedge.model.rope import Positions, RopeConfig

MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_FFN = 1 << 20
MAX_EXPERTS = 1024

ActivationName: TypeAlias = Literal["silu", "gelu_pytorch_tanh", "gpt_oss"]
"""As `hidden_act` of config.json; elementwise.py defines "gpt_oss"."""
Norms: TypeAlias = Literal["before", "around", "after"]
"""Whether a block has a norm of its input, of its result, or of both."""

Heads = Annotated[int, Meta(ge=1, le=MAX_HEADS)]


@dataclass(frozen=True)
class Attention:
    """Query heads of `width` columns, in equal groups that share a KV head. Position p attends to q with p - window < q
    <= p (None: to all q <= p)."""

    heads: Heads
    kv_heads: Heads
    width: Annotated[int, Meta(ge=2, le=MAX_HEAD_DIM)]
    rope: RopeConfig | None  # None: heads are not rotated
    window: Positions | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    #: Whether each head of q and k has an RMS norm before the rotation.
    head_norms: bool = False
    #: Whether q and k have an RMS norm over all heads at once instead. Every node has both whole then.
    row_norms: bool = False
    #: The earlier layer whose keys and values are used; None for own ones.
    keys_of: Annotated[int, Meta(ge=0)] | None = None
    #: Whether values are the products of k, before its norm. There is no v then.
    values_from_keys: bool = False
    #: Whether each head of the values has an RMS norm without a weight.
    value_norms: bool = False
    #: Whether the softmax of each query head has one more score, of no key: a number of the vector "sinks".
    sinks: bool = False

    @property
    def projections(self) -> str:
        """The names of the matrices before o."""
        return "q" if self.keys_of is not None else "qk" if self.values_from_keys else "qkv"

    @property
    def rotation(self) -> tuple[RopeConfig | None, int]:
        """Angles depend on this and the position."""
        return self.rope, self.width

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class FFN:
    """y = down(activation(gate(x)) * up(x)), with `columns` rows in gate and up; y = down(activation(up(x))) unless
    `gated`."""

    columns: Annotated[int, Meta(ge=1, le=MAX_FFN)]
    bias: bool = False
    activation: ActivationName = "silu"
    gated: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the matrices."""
        return ("gate", "up", "down") if self.gated else ("up", "down")


@dataclass(frozen=True)
class Experts:
    """y = the sum over a token's `chosen` experts of weight * down(activation(gate(x)) * up(x)). A router scores all
    experts. A softmax over all scores gives the weights."""

    count: Annotated[int, Meta(ge=1, le=MAX_EXPERTS)]
    chosen: Annotated[int, Meta(ge=1, le=MAX_EXPERTS)]
    #: Rows in gate and up of one expert.
    columns: Annotated[int, Meta(ge=1, le=MAX_FFN)]
    activation: ActivationName = "silu"
    #: Whether the weights of a token's experts are divided by their sum.
    normalised: bool = True
    #: Whether the vector "router_bias" is added to the scores.
    router_bias: bool = False
    #: Whether the router reads x with an RMS norm of its own, "router_norm"; else it reads what the experts read.
    router_norm: bool = False
    #: Whether the vector "expert_scale" multiplies the experts' weights.
    scaled: bool = False
    #: Whether each expert has biases. The vectors "gate_bias", "up_bias" and "down_bias" have a row for each expert.
    bias: bool = False

    def touched(self, rows: float) -> float:
        """Returns how many experts `rows` tokens choose together, if each is equally likely."""
        missed: float = (1 - self.chosen / self.count) ** rows
        return self.count * (1 - missed)


@dataclass(frozen=True)
class LayerInputs:
    """Ends a layer with x += norm(down(activation(gate(x)) * inputs)), where gate has `columns` rows. Rank 0 makes a
    token's inputs for all layers before the first one. Every node has both matrices whole."""

    columns: Annotated[int, Meta(ge=1, le=MAX_FFN)]
    activation: ActivationName = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Layer:
    """Has an FFN, experts, or both: then y = norm(ffn(norm(x))) + norm(experts(norm(x))), each norm another."""

    attention: Attention
    ffn: FFN | None
    inputs: LayerInputs | None = None
    #: Whether the layer ends with x *= the number "layer_scalar" of its checkpoint.
    scaled: bool = False
    experts: Experts | None = None

    @property
    def sums(self) -> int:
        """Sums of the block after attention."""
        return 2 if self.ffn and self.experts else 1

    @property
    def used_columns(self) -> int:
        """Columns of the FFN and of the experts of one token."""
        of_experts = self.experts.chosen * self.experts.columns if self.experts else 0
        return of_experts + (self.ffn.columns if self.ffn else 0)
