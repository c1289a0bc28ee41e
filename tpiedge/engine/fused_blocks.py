"""Blocks as native calls, made once for as long as the weights are the same objects. Streamed weights come anew with
every step, and their calls with them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final, TypeAlias

from torch import Tensor

from tpiedge.kernels.attention_block import FusedAttention, FusedLayers
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.library import Pool
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH
from tpiedge.kv.cache import KVCache
from tpiedge.memory.sweep import Block
from tpiedge.memory.weights import BlockWeights, NodeWeights
from tpiedge.model.config import ModelConfig
from tpiedge.pack.layout import ATTENTION_MATRICES, FFN_MATRICES
from tpiedge.pack.share import NodeShare, kv_share

BlockGrids: TypeAlias = Sequence[tuple[Grid | None, Grid | None]]
"""For each layer the grids of o and down; None where the model is not quantised."""

_FFN_TILE: Final = 128


class FusedBlocks:
    """One node's fused blocks; None for a block that needs one operation at a time: not native, or not quantised."""

    def __init__(
        self,
        config: ModelConfig,
        share: NodeShare,
        kv_of_head: tuple[int, ...],
        cache: KVCache,
        weights: NodeWeights,
        grids: BlockGrids,
        pool: Pool | None,
    ) -> None:
        self._pool = pool
        self._config = config
        self._share = share
        self._kv = kv_share(share.attention, config.group_size)
        self._grids = grids
        self._kv_of_head = kv_of_head
        self._cache = cache
        self._weights = weights
        self._attention: dict[int, tuple[BlockWeights, FusedAttention | None]] = {}
        self._ffn: dict[int, tuple[BlockWeights, FusedFFN | None]] = {}

    def attention(self, layer: int, weights: BlockWeights) -> FusedAttention | None:
        known = self._attention.get(layer)
        if known is None or known[0] is not weights:
            known = self._attention[layer] = weights, self._new_attention(layer, weights)
        return known[1]

    def ffn(self, layer: int, weights: BlockWeights) -> FusedFFN | None:
        known = self._ffn.get(layer)
        if known is None or known[0] is not weights:
            known = self._ffn[layer] = weights, self._new_ffn(layer, weights)
        return known[1]

    @cached_property
    def stack(self) -> FusedLayers | None:
        """All layers; None also where weights are streamed, or o or down has a bias, which is added after the
        all-reduce."""
        kept = self._weights.kept()
        if self._pool is None or kept is None:
            return None
        blocks: list[tuple[FusedAttention, FusedFFN]] = []
        for layer in range(self._config.num_layers):
            of_attention, of_ffn = kept[Block(layer, "attention")], kept[Block(layer, "ffn")]
            if "o_bias" in of_attention.vectors or "down_bias" in of_ffn.vectors:
                return None
            attention, ffn = self.attention(layer, of_attention), self.ffn(layer, of_ffn)
            if attention is None or ffn is None:
                return None
            blocks.append((attention, ffn))
        return FusedLayers(blocks, self._pool)

    def _new_attention(self, layer: int, weights: BlockWeights) -> FusedAttention | None:
        vectors, config, (grid, _) = weights.vectors, self._config, self._grids[layer]
        matrices = _panels(weights, ATTENTION_MATRICES)
        if self._pool is None or config.head_dim > MAX_HEAD_WIDTH or len(matrices) < 4 or grid is None:
            return None
        q, k, v, o = matrices
        own_heads = (("q", self._share.attention), ("k", self._kv), ("v", self._kv))
        q_bias, k_bias, v_bias = (
            vectors[f"{name}_bias"][heads.start * config.head_dim : heads.stop * config.head_dim]
            if config.qkv_bias
            else None
            for name, heads in own_heads
        )
        return FusedAttention(
            (q, k, v, o),
            grid,
            vectors["attention_norm"],
            config.rms_norm_eps,
            self._kv_of_head,
            self._cache.layouts[layer],
            self._pool,
            biases=(q_bias, k_bias, v_bias),
            head_norms_d=(vectors["q_norm"], vectors["k_norm"]) if config.qk_norm else None,
            window=config.windows[layer],
        )

    def _new_ffn(self, layer: int, weights: BlockWeights) -> FusedFFN | None:
        matrices = _panels(weights, FFN_MATRICES)
        _, grid = self._grids[layer]
        if self._pool is None or len(matrices) < 3 or grid is None:
            return None
        gate, up, down = matrices
        biases = ffn_bias(weights, "gate", self._share), ffn_bias(weights, "up", self._share)
        norm_H, eps = weights.vectors["ffn_norm"], self._config.rms_norm_eps
        return FusedFFN(norm_H, eps, (gate, up, down), self._pool, grid, biases)


def _panels(weights: BlockWeights, names: Sequence[str]) -> list[PanelMatrix]:
    return [w for w in map(weights.matrices.__getitem__, names) if isinstance(w, PanelMatrix)]


def ffn_bias(weights: BlockWeights, name: str, share: NodeShare) -> Tensor | None:
    """A node's part of the bias of gate or up; None without one."""
    bias = weights.vectors.get(f"{name}_bias")
    return None if bias is None else bias[share.ffn.start * _FFN_TILE : share.ffn.stop * _FFN_TILE]
