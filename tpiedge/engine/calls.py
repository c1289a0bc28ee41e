"""Blocks, or all of them, as native calls, made once for as long as the weights are the same objects.

Weights that stay in memory always are; those that are streamed come anew with every step, and their calls with them.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from tpiedge.kernels.attention_block import AttentionBlock, AttentionCall, all_panels
from tpiedge.kernels.ffn import FfnCall
from tpiedge.kernels.library import MAX_HEAD_WIDTH, Pool
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.stack import StackCall
from tpiedge.kv.cache import KVCache
from tpiedge.memory.sweep import Block
from tpiedge.memory.weights import BlockWeights, Weights
from tpiedge.model.config import ModelConfig
from tpiedge.pack.layout import ATTENTION_MATRICES

__all__ = ["BlockCalls"]

_Call = TypeVar("_Call", AttentionCall, FfnCall)


class BlockCalls:
    """Of one node's share. None where a block has to be computed piece by piece: without native kernels, with weights
    that are not quantised, or with biases."""

    def __init__(self, config: ModelConfig, kv_of_head: tuple[int, ...], cache: KVCache) -> None:
        self._config = config
        self._kv_of_head = kv_of_head
        self._cache = cache
        self._attention = _Kept[AttentionCall](config.num_layers)
        self._ffn = _Kept[FfnCall](config.num_layers)
        self._stacks: dict[int, StackCall | None] = {}
        self._stacks_of: Mapping[Block, BlockWeights] | None = None

    def attention(self, layer: int, weights: BlockWeights, pool: Pool | None) -> AttentionCall | None:
        """For the tokens of one sequence."""
        if not self._attention.knows(layer, weights):
            self._attention.keep(layer, weights, self._new_attention(layer, weights, pool) if pool else None)
        return self._attention.calls[layer]

    def stack(self, weights: Weights, slot: int, pool: Pool | None) -> StackCall | None:
        """All layers, for tokens of the sequence in that slot of the cache. None also where weights are streamed."""
        kept = weights.kept() if pool else None
        if pool is None or kept is None:
            return None
        if self._stacks_of is not kept:
            self._stacks_of, self._stacks = kept, {}
        if slot not in self._stacks:
            self._stacks[slot] = self._new_stack(kept, slot, pool)
        return self._stacks[slot]

    def ffn(self, layer: int, weights: BlockWeights, pool: Pool | None) -> FfnCall | None:
        """For any tokens."""
        if not self._ffn.knows(layer, weights):
            self._ffn.keep(layer, weights, self._new_ffn(weights, pool) if pool else None)
        return self._ffn.calls[layer]

    def _new_stack(self, kept: Mapping[Block, BlockWeights], slot: int, pool: Pool) -> StackCall | None:
        blocks: list[tuple[AttentionCall, FfnCall]] = []
        layers = range(self._config.num_layers)
        for layer in layers:
            of_attention, of_ffn = kept[Block(layer, "attention")], kept[Block(layer, "ffn")]
            if "o_bias" in of_attention.vectors or "down_bias" in of_ffn.vectors:
                return None
            attention, ffn = self.attention(layer, of_attention, pool), self.ffn(layer, of_ffn, pool)
            if attention is None or ffn is None:
                return None
            blocks.append((attention, ffn))
        return StackCall(blocks, [self._cache.addresses(layer, slot) for layer in layers], pool)

    def _new_attention(self, layer: int, weights: BlockWeights, pool: Pool) -> AttentionCall | None:
        vectors, config = weights.vectors, self._config
        matrices = tuple(weights.matrices[name] for name in ATTENTION_MATRICES)
        if config.head_dim > MAX_HEAD_WIDTH or not all_panels(matrices) or config.qkv_bias:
            return None
        norms = (vectors["q_norm"], vectors["k_norm"]) if config.qk_norm else None
        block = AttentionBlock(
            matrices,
            vectors["attention_norm"],
            norms,
            config.rms_norm_eps,
            self._kv_of_head,
            config.windows[layer],
            config.head_dim,
        )
        return AttentionCall(block, self._cache.memory, pool)

    def _new_ffn(self, weights: BlockWeights, pool: Pool) -> FfnCall | None:
        gate, up, down = (weights.matrices[name] for name in ("gate", "up", "down"))
        if not (
            isinstance(gate, PanelMatrix) and isinstance(up, PanelMatrix) and isinstance(down, PanelMatrix)
        ):
            return None
        if "gate_bias" in weights.vectors or "up_bias" in weights.vectors:
            return None
        return FfnCall(weights.vectors["ffn_norm"], self._config.rms_norm_eps, (gate, up, down), pool)


class _Kept(Generic[_Call]):
    """The call of each layer, and the weights that it was made of."""

    def __init__(self, layers: int) -> None:
        self.calls: list[_Call | None] = [None] * layers
        self._weights: list[BlockWeights | None] = [None] * layers

    def knows(self, layer: int, weights: BlockWeights) -> bool:
        return self._weights[layer] is weights

    def keep(self, layer: int, weights: BlockWeights, call: _Call | None) -> None:
        self._weights[layer], self.calls[layer] = weights, call
