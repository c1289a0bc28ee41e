"""The forward pass of one node: its slice of every layer, and the all-reduces that sum the slices.

Shapes: T tokens of the step, C tokens of a chunk, H hidden size, n local query heads, K local KV heads, d head
dimension, P padded rows of a head. The residual stream x_TH is f32 and identical on all nodes (TPI-LLM, section 3.1).
"""

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.engine.meter import Meter
from tpiedge.engine.steps import ChunkRows, OverlappedReduces, chunks, segments_of, wanted_rows
from tpiedge.kernels.attention import append_pages, attention_pages, kv_of_heads
from tpiedge.kernels.attention_block import FusedAttention, FusedLayers, FusedPair
from tpiedge.kernels.elementwise import Activation, Rotation, rms_norm, rope, tables
from tpiedge.kernels.experts import ExpertBiases, FusedExperts, Mixed, Router, experts
from tpiedge.kernels.ffn import FusedFFN, ffn
from tpiedge.kernels.grid import PLAIN_END, BlockEnd, Grid, add_sums
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH
from tpiedge.kv.cache import KVCache, LayerKV
from tpiedge.memory.sweep import Block
from tpiedge.memory.weights import BlockWeights, NodeWeights
from tpiedge.model.blocks import Attention, Experts, Layer
from tpiedge.model.config import ModelConfig
from tpiedge.model.rope import RopeConfig
from tpiedge.model.rotation import grown, rope_frequencies
from tpiedge.pack.grids import Exponents
from tpiedge.pack.share import Axis, NodeShare, Share, kv_share, units_of
from tpiedge.pack.specs import ROUTER
from tpiedge.wire.data import Segment, StepPlan
from tpiedge.wire.fields import KVPrecision

T = TypeVar("T")
_POSITIONS: Final = 64
_FFN_TILE, _EXPERT_TILE = 128, 64
#: Names of the bias and of the norm at a block's end.
_ENDS: Final = {
    "attention": ("o_bias", "attention_end_norm"),
    "ffn": ("down_bias", "ffn_end_norm"),
    "inputs": ("", "inputs_end_norm"),
}


class _ChunkPart(NamedTuple):
    rows: ChunkRows
    spans: Spans
    rotations: Sequence[Rotation]  # by kind


@functools.lru_cache(maxsize=128)
def _kept_tables(rope: RopeConfig, head_dim: int, block: int) -> tuple[Tensor, Tensor]:
    # Made for 64 positions at a time, the tables of one token take a fifth of the time.
    inv_freq, scale = rope_frequencies(rope, head_dim)
    positions = torch.arange(block * _POSITIONS, (block + 1) * _POSITIONS)
    return tables(positions, torch.from_numpy(inv_freq), scale)


def _tables(rope: RopeConfig | None, width: int, segment: Segment) -> Iterator[tuple[Tensor, Tensor]]:
    if rope is None:
        yield torch.empty(segment.length, 0), torch.empty(segment.length, 0)
        return
    rope = rope.long if segment.long else rope
    start, stop = segment.start, segment.start + segment.length
    for block in range(start // _POSITIONS, (stop - 1) // _POSITIONS + 1):
        cos_Pr, sin_Pr = _kept_tables(rope, width, block)
        first = block * _POSITIONS
        own = slice(max(start - first, 0), stop - first)
        yield cos_Pr[own], sin_Pr[own]


def kv_cache(
    config: ModelConfig, share: NodeShare, kv: KVPrecision, slots: int, capacity_tokens: int
) -> KVCache:
    """Makes a node's KV cache. Raises OutOfMemory."""
    layers = [
        LayerKV(len(kv_share(share.along("attention"), one.group_size)), KVFormat(kv, one.width))
        if one.keys_of is None
        else one.keys_of
        for one in (layer.attention for layer in config.layers)
    ]
    return KVCache(layers, slots=slots, capacity=capacity_tokens)


class Engine:
    """Computes steps for one node. Not thread-safe. The caller closes the arguments."""

    def __init__(
        self,
        config: ModelConfig,
        share: NodeShare,
        weights: NodeWeights,
        cache: KVCache,
        communicator: Communicator,
        linear: Linear,
        meter: Meter,
        grids: Exponents,
    ) -> None:
        self.config = config
        self.weights = weights
        self.cache = cache
        self.communicator = communicator
        self.linear = linear
        self.meter = meter
        self._queries = share.along("attention")
        self._reduces = OverlappedReduces(communicator, meter, linear.pool)
        self._order = tuple(
            Block(layer, kind) for layer in range(config.num_layers) for kind in ("attention", "ffn")
        )
        groups = [layer.attention.group_size for layer in config.layers]
        self._kv = [kv_share(self._queries, size) for size in groups]
        self._kv_of_head = [kv_of_heads(self._queries.start, self._queries.stop, size) for size in groups]
        #: By axis and layer: the node's tiles of the FFN and of every expert.
        self._tiles: Mapping[Axis, Sequence[Share]] = {
            "ffn": _tiles(
                [one.ffn.columns if one.ffn else 0 for one in config.layers], _FFN_TILE, share.along("ffn")
            ),
            "experts": _tiles(
                [one.experts.columns if one.experts else 0 for one in config.layers],
                _EXPERT_TILE,
                share.along("experts"),
            ),
        }
        #: Grids of each layer's attention, FFN or experts, and inputs; None unless products are in int8.
        self._grids: Sequence[Sequence[Grid | None]] = (
            [
                [Grid.among(exponent, communicator.size) for exponent in _of_blocks(row, layer)]
                for row, layer in zip(grids, config.layers, strict=True)
            ]
            if grids
            else [[None] * 3] * config.num_layers
        )
        self._rotation_of = [config.rotations.index(layer.attention.rotation) for layer in config.layers]
        #: By layer: a block's weights and its native call. Streamed weights are new objects in every step.
        self._attentions: dict[int, tuple[BlockWeights, FusedAttention | None]] = {}
        self._ffns: dict[int, tuple[BlockWeights, FusedFFN | None]] = {}
        self._mixtures: dict[int, tuple[BlockWeights, FusedExperts | None]] = {}
        self._of_inputs: dict[int, tuple[BlockWeights, FusedFFN | None]] = {}

    @property
    def int8(self) -> bool:
        """Whether products are in int8."""
        return self._grids[0][0] is not None

    def embedding(self, ids: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Returns the hidden states before the first layer, f32 [T, H], and the inputs of all layers, f32 [T, I], if
        the model has some. Only rank 0 may call it."""
        rows_TH = self.weights.embedding_rows(ids)
        factor = self.config.factors.embedding
        x_TH = rows_TH if factor == 1 else rows_TH.mul_(factor)
        return x_TH, self._inputs(ids, x_TH) if self.config.input_columns else None

    def _inputs(self, ids: Sequence[int], x_TH: Tensor) -> Tensor:
        of_layer, config, weights = self.config.first.inputs, self.config, self.weights
        assert of_layer is not None  # all layers have some
        norm_P, projection = (
            weights.vectors["embedding"]["inputs_norm"],
            weights.whole("embedding", "inputs_projection"),
        )
        y_TI = torch.empty(len(ids), config.input_columns)
        for first in range(0, len(ids), NATIVE_TOKENS):  # a token's bits are those of any batch
            rows = slice(first, first + NATIVE_TOKENS)
            of_context_RI = self.linear.project(x_TH[rows], projection)[:, : config.input_columns]
            context_RLP = (of_context_RI * config.hidden_size**-0.5).unflatten(1, (-1, of_layer.columns))
            normed_RLP = rms_norm(context_RLP, norm_P, config.rms_norm_eps, self.linear.pool)
            of_token_RI = weights.embedding_rows(ids[rows], "inputs_embedding") * of_layer.columns**0.5
            y_TI[rows] = (normed_RLP.flatten(1) + of_token_RI) * 2**-0.5
        return y_TI

    def run(self, x_TH: Tensor, plan: StepPlan, inputs_TI: Tensor | None = None) -> None:
        """Computes all layers in place. On rank 0, `x_TH` holds embeddings, and `inputs_TI` the inputs of all layers.
        Afterwards only the rows that `plan` wants are complete. Raises PeerLost, ProtocolError, StepCancelled."""
        self.cache.change(plan.tables, plan.discarded)
        self.cache.truncate(plan.segments)
        self.weights.make_room(self.cache.held_bytes)
        if inputs_TI is None and self.config.input_columns:
            inputs_TI = torch.empty(len(x_TH), self.config.input_columns)
        parts = self._parts(x_TH, plan, inputs_TI)
        self.meter.block, self.meter.step = 0, plan.step
        self._reduces = OverlappedReduces(self.communicator, self.meter, self.linear.pool, plan.wire)
        if not self._stack(x_TH, plan, parts):
            self._blocks(x_TH, plan, parts, inputs_TI)
        self.cache.commit(plan.segments)
        self.meter.steps += 1
        self.meter.tokens += plan.tokens

    def _parts(self, x_TH: Tensor, plan: StepPlan, inputs_TI: Tensor | None) -> Sequence[_ChunkPart]:
        cuts = chunks(plan)
        rotations = [self._rotation(*kind, plan.segments) for kind in self.config.rotations]
        parts = []
        for rows, own in zip(ChunkRows.of(x_TH, cuts, inputs_TI), cuts, strict=True):
            spans = [self.cache.span(one.slot, one.start, one.length) for one in segments_of(plan, own)]
            of_chunk = Spans(spans, self.cache.page_positions)
            parts.append(_ChunkPart(rows, of_chunk, [rotation.of_tokens(own) for rotation in rotations]))
        return parts

    def _stack(self, x_TH: Tensor, plan: StepPlan, parts: Sequence[_ChunkPart]) -> bool:
        """Computes all blocks in one native call, if possible. Returns whether it did."""
        if (
            self.communicator.size > 1
            or plan.tokens > NATIVE_TOKENS
            or self.meter.traced
            or len(parts) > 1
            or any(segment.wanted < segment.length for segment in plan.segments)
        ):
            return False
        fused = self._layers
        if fused is None or plan.tokens > fused.most_tokens:
            return False
        rows, spans, rotations = parts[0]
        self.meter.computed(*fused.run(x_TH, spans, rotations, rows.inputs_CI))
        self._reduces.ended_alone(rows, Tag(plan.step, 2 * self.config.num_layers - 1, 0))
        return True

    def _blocks(
        self, x_TH: Tensor, plan: StepPlan, parts: Sequence[_ChunkPart], inputs_TI: Tensor | None
    ) -> None:
        step_rows = [part.rows for part in parts]
        last = 2 * self.config.num_layers - 1
        for number in range(last):
            self._block(plan.step, number, step_rows, parts)
        rows, cuts = wanted_rows(plan)
        if len(rows) == plan.tokens:
            self._block(plan.step, last, step_rows)
            self._reduces.finish()
            return
        # Only the wanted rows are computed and reduced (MOM, section 3.1).
        self._reduces.finish()
        x_MH = x_TH[rows]
        inputs_MI = None if inputs_TI is None else inputs_TI[rows]
        self._block(plan.step, last, ChunkRows.of(x_MH, cuts, inputs_MI))
        self._reduces.finish()
        x_TH[rows] = x_MH

    def _block(
        self, step: int, number: int, step_rows: Sequence[ChunkRows], parts: Sequence[_ChunkPart] = ()
    ) -> None:
        layer, is_ffn = divmod(number, 2)
        with self.weights.resident(self._order[number]) as weights:
            end = self._end(weights, layer, "ffn" if is_ffn else "attention")
            for at, rows in enumerate(step_rows):
                tag = Tag(step, number, rows.index)
                if number == 0:
                    self._receive(rows, tag)
                self._reduces.finish(rows)
                if is_ffn:
                    with self.meter.ffn_span.of(layer):
                        partial_CH, choices = self._ffn(rows.x_CH, weights, layer)
                    tag = tag._replace(choices=choices)
                else:
                    with self.meter.attention_span.of(layer):
                        partial_CH = self._attention(parts[at], weights, layer)
                grid, wait, then = self._grids[layer][is_ffn], len(step_rows) == 1, None
                if is_ffn and rows.inputs_CI is not None:
                    then = functools.partial(self._add_inputs, rows.x_CH, rows.inputs_CI, weights, layer)
                self._reduces.all_reduce(rows, partial_CH, tag, end, grid, then, wait=wait)

    def _receive(self, rows: ChunkRows, tag: Tag) -> None:
        """Broadcasts rank 0's hidden states, with the inputs of all layers beside them."""
        x_CH, inputs_CI = rows.x_CH, rows.inputs_CI
        sent = x_CH if inputs_CI is None else torch.cat((x_CH, inputs_CI), 1)
        # Few messages pile up at a slow node, because rank 0 waits in all-reduces.
        with self.meter.broadcast_span:
            found = self.communicator.broadcast(sent, tag)
        if found is not sent:
            x_CH.copy_(found[:, : x_CH.shape[1]])
            if inputs_CI is not None:
                inputs_CI.copy_(found[:, x_CH.shape[1] :])

    def _add_inputs(self, x_CH: Tensor, inputs_CI: Tensor, weights: BlockWeights, layer: int) -> None:
        """Ends a layer that has inputs, alike on all nodes."""
        of_layer, grid = self.config.layers[layer].inputs, self._grids[layer][2]
        assert of_layer is not None
        columns, fused = of_layer.columns, _kept(self._of_inputs, layer, weights, self._new_of_inputs)
        with self.meter.ffn_span.of(layer):
            own_CP = inputs_CI[:, layer * columns : (layer + 1) * columns]
            if fused is not None:
                sums_CH = fused.run(x_CH, own_CP)
            else:
                gate, down = weights.matrices["inputs_gate"], weights.matrices["inputs_down"]
                own_CP = functional.pad(own_CP, (0, down.shape[0] - columns))
                sums_CH = ffn(
                    x_CH, None, 0.0, gate, None, down, self.linear,
                    activation=Activation(of_layer.activation), inputs_TF=own_CP,
                )  # fmt: skip
            add_sums(x_CH, sums_CH, grid, self.linear.pool, self._end(weights, layer, "inputs"))

    def _attention(self, part: _ChunkPart, weights: BlockWeights, layer: int) -> Tensor | None:
        if not len(self._queries):
            return None
        rows, spans, rotation = part.rows, part.spans, part.rotations[self._rotation_of[layer]]
        fused = _kept(self._attentions, layer, weights, self._new_attention)
        if fused is not None:
            return fused.run(rows.x_CH, spans, rotation)
        of_layer = self.config.layers[layer].attention
        h_CH = self._norm(rows.x_CH, weights, "attention_norm")
        layout, pool, factors = self.cache.layouts[layer], self.linear.pool, self.config.factors
        stored = _projections(of_layer)
        products = self.linear.project_many(h_CH, [weights.matrices[matrix] for matrix in stored.values()])
        found = dict(zip(stored, products, strict=True))
        heads = functools.partial(self._heads, layer=layer, weights=weights, rotation=rotation)
        q_Cnd = heads("q", found["q"])
        if "k" in found:
            k_CKd, v_CKd = heads("k", found["k"]), heads("v", found.get("v", found["k"]))
            append_pages(k_CKd, v_CKd, spans, layout, pool=pool)
        out_Cnd = attention_pages(
            q_Cnd, spans, layout, self._kv_of_head[layer], window=of_layer.window, scale=factors.scores,
            cap=factors.score_cap, sinks_N=self._sinks(weights), pool=pool,
        )  # fmt: skip
        o_RH = weights.matrices["o"]
        padding = o_RH.shape[0] // len(self._queries) - out_Cnd.shape[-1]
        out_CnP = functional.pad(out_Cnd, (0, padding)) if padding else out_Cnd
        return self.linear.contract(out_CnP.flatten(1), o_RH, self._grids[layer][0])

    def _norm(self, x: Tensor, weights: BlockWeights, name: str) -> Tensor:
        """Returns `x` if the block has no such norm."""
        if name not in weights.vectors:
            return x
        return rms_norm(x, weights.vectors[name], self.config.rms_norm_eps, self.linear.pool)

    def _heads(
        self, name: str, y_CP: Tensor, layer: int, weights: BlockWeights, rotation: Rotation
    ) -> Tensor:
        """Returns the own heads of q, k or v as attention takes them, [C, heads, d]."""
        of_layer, own = self.config.layers[layer].attention, self._own_heads(layer)[name]
        matrix = name if name in of_layer.projections else "k"
        whole = matrix != "v" and of_layer.row_norms
        held = Share(of_layer.heads if name == "q" else of_layer.kv_heads) if whole else own
        x_Cnd = y_CP.view(len(y_CP), len(held), -1)[..., : of_layer.width]
        bias = weights.vectors.get(f"{matrix}_bias")
        if bias is not None:
            x_Cnd = x_Cnd + bias.view(-1, of_layer.width)[held.start : held.stop]
        if name == "v":
            x_Cnd = x_Cnd[:, own.start : own.stop] if whole else x_Cnd
            if of_layer.value_norms:
                x_Cnd = rms_norm(
                    x_Cnd, torch.ones(of_layer.width), self.config.rms_norm_eps, self.linear.pool
                )
            return x_Cnd
        if whole:
            x_CR = self._norm(x_Cnd.flatten(1), weights, f"{name}_norm")
            x_Cnd = x_CR.view(x_Cnd.shape)[:, own.start : own.stop]
        elif f"{name}_norm" in weights.vectors:
            x_Cnd = self._norm(x_Cnd, weights, f"{name}_norm")
        factor_C = rotation.factor_T if name == "q" else None
        return rope(x_Cnd, rotation.cos_Tr, rotation.sin_Tr, self.linear.pool, factor_C)

    def _sinks(self, weights: BlockWeights) -> Tensor | None:
        sinks = weights.vectors.get("sinks")
        return None if sinks is None else sinks[self._queries.start : self._queries.stop]

    def _own_heads(self, layer: int) -> Mapping[str, Share]:
        return {"q": self._queries, "k": self._kv[layer], "v": self._kv[layer]}

    def _ffn(self, x_CH: Tensor, weights: BlockWeights, layer: int) -> tuple[Tensor | None, int]:
        """Returns the node's part, and a digest of the chosen experts, or 0. Rows of experts follow those of an FFN
        beside them."""
        dense_CH, mixed_CH, choices = None, None, 0
        if self._tiles["ffn"][layer]:
            dense_CH = self._dense(x_CH, weights, layer)
        # Without tiles it does not route: it would read 50 MB a token for 48 layers of 128 experts, for nothing.
        if self._tiles["experts"][layer]:
            mixed_CH, chosen_Ck = self._experts(x_CH, weights, layer)
            choices = zlib.crc32(chosen_Ck.numpy().data) or 1  # 0: none were chosen
        given = [part for part in (dense_CH, mixed_CH) if part is not None]
        if self.config.layers[layer].sums == 1 or not given:
            return next(iter(given), None), choices
        nothing = torch.zeros_like(given[0])
        return torch.cat([nothing if part is None else part for part in (dense_CH, mixed_CH)]), choices

    def _dense(self, x_CH: Tensor, weights: BlockWeights, layer: int) -> Tensor:
        fused = _kept(self._ffns, layer, weights, self._new_ffn)
        if fused is not None:
            return fused.run(x_CH)
        gate, up, down = weights.matrices.get("gate"), weights.matrices["up"], weights.matrices["down"]
        columns = up.shape[0]
        of_gate, of_up = (self._ffn_bias(weights, layer, name, columns) for name in ("gate", "up"))
        norm_H, activation = weights.vectors.get("ffn_norm"), self._activation(layer)
        biases = of_gate, of_up
        return ffn(x_CH, norm_H, self.config.rms_norm_eps, gate, up, down, self.linear, biases, activation)

    def _experts(self, x_CH: Tensor, weights: BlockWeights, layer: int) -> Mixed:
        fused = _kept(self._mixtures, layer, weights, self._new_experts)
        if fused is not None:
            return fused.run(x_CH)
        stored, of_layer = weights.experts, self.config.layers[layer].experts
        assert stored is not None  # the node has tiles of them
        assert of_layer is not None
        norm_H = _experts_norm(weights)
        biases = self._expert_biases(weights, layer, of_layer, stored.of(0)[0].shape[0])
        return experts(
            x_CH, norm_H, self.config.rms_norm_eps, _router(weights, of_layer), stored.of, self.linear,
            Activation(of_layer.activation), self._grids[layer][1], biases,
        )  # fmt: skip

    def _expert_biases(
        self, weights: BlockWeights, layer: int, of_layer: Experts, columns: int
    ) -> ExpertBiases | None:
        """Returns the biases of the node's columns, of which its matrices have `columns`."""
        if not of_layer.bias:
            return None
        gate_EF, up_EF, down_EO = (
            weights.vectors[f"{name}_bias"].view(of_layer.count, -1) for name in ("gate", "up", "down")
        )
        tiles = self._tiles["experts"][layer]
        own = slice(tiles.start * _EXPERT_TILE, tiles.stop * _EXPERT_TILE)
        return ExpertBiases(gate_EF, up_EF, down_EO).of_columns(own, columns)

    def _activation(self, layer: int) -> Activation:
        of_layer = self.config.layers[layer].ffn
        assert of_layer is not None
        return Activation(of_layer.activation)

    def _ffn_bias(self, weights: BlockWeights, layer: int, name: str, columns: int = 0) -> Tensor | None:
        bias = weights.vectors.get(f"{name}_bias")
        if bias is None:
            return None
        tiles = self._tiles["ffn"][layer]
        own = bias[tiles.start * _FFN_TILE : tiles.stop * _FFN_TILE]
        # Padding stays zero through SwiGLU and `down`.
        return functional.pad(own, (0, max(0, columns - own.shape[0])))

    def _rotation(self, rope: RopeConfig | None, width: int, segments: Sequence[Segment]) -> Rotation:
        found = [tables for segment in segments for tables in _tables(rope, width, segment)]
        cos, sin = zip(*found, strict=True)
        growth, factor_T = self.config.factors.score_growth, None
        if growth and rope is not None:
            original = rope.original_positions
            positions = (p for one in segments for p in range(one.start, one.start + one.length))
            factor_T = torch.tensor([grown(growth, position // original) for position in positions])
        return Rotation(torch.cat(cos), torch.cat(sin), factor_T)

    def _end(
        self, weights: BlockWeights, layer: int, kind: Literal["attention", "ffn", "inputs"]
    ) -> BlockEnd:
        vectors, factor, (bias, norm) = weights.vectors, self.config.factors.block, _ENDS[kind]
        if kind == "ffn" and self.config.layers[layer].experts is not None:
            bias = ""  # each expert has one
        ends = kind == ("ffn" if self.config.layers[layer].inputs is None else "inputs")
        scale = vectors["layer_scalar"].item() if ends and "layer_scalar" in vectors else 1.0
        if bias not in vectors and norm not in vectors and factor == scale == 1:
            return PLAIN_END
        parts = None
        if kind == "ffn" and self.config.layers[layer].sums == 2:
            parts = vectors["ffn_part_norm"], vectors["experts_part_norm"]
        return BlockEnd(vectors.get(bias), vectors.get(norm), self.config.rms_norm_eps, factor, scale, parts)

    @cached_property
    def _layers(self) -> FusedLayers | None:
        kept = self.weights.kept()
        if self.linear.pool is None or kept is None:
            return None
        layers: list[tuple[FusedAttention, *tuple[FusedFFN | FusedExperts | FusedPair, ...]]] = []
        ends: list[tuple[BlockEnd, ...]] = []
        for layer in range(self.config.num_layers):
            of_attention, of_ffn = kept[Block(layer, "attention")], kept[Block(layer, "ffn")]
            attention = _kept(self._attentions, layer, of_attention, self._new_attention)
            dense = _kept(self._ffns, layer, of_ffn, self._new_ffn)
            mixed = _kept(self._mixtures, layer, of_ffn, self._new_experts)
            made = [one for one in (dense, mixed) if one is not None]
            if attention is None or len(made) < self.config.layers[layer].sums:
                return None
            blocks: list[FusedFFN | FusedExperts | FusedPair] = [made[0]]
            if dense is not None and mixed is not None:
                blocks = [FusedPair(dense, mixed)]
            own_ends = [self._end(of_attention, layer, "attention"), self._end(of_ffn, layer, "ffn")]
            if self.config.layers[layer].inputs is not None:
                of_inputs = _kept(self._of_inputs, layer, of_ffn, self._new_of_inputs)
                if of_inputs is None:
                    return None
                blocks.append(of_inputs)
                own_ends.append(self._end(of_ffn, layer, "inputs"))
            layers.append((attention, *blocks))
            ends.append(tuple(own_ends))
        return FusedLayers(layers, self.linear.pool, ends, self._rotation_of)

    def _new_attention(self, layer: int, weights: BlockWeights) -> FusedAttention | None:
        vectors, config, pool, (grid, *_) = weights.vectors, self.config, self.linear.pool, self._grids[layer]
        of_layer = config.layers[layer].attention
        stored, width = _projections(of_layer), of_layer.width
        matrices = _panels(weights, [*stored.values(), "o"])
        if pool is None or width > MAX_HEAD_WIDTH or len(matrices) <= len(stored) or grid is None:
            return None
        (q, *kv, o), own = matrices, self._own_heads(layer)
        k, v = (*kv, None, None)[:2]
        q_bias, k_bias, v_bias = (
            bias
            if (bias := vectors.get(f"{name}_bias")) is None or stored.get(name) != name
            else bias[heads.start * width : heads.stop * width]
            for name, heads in own.items()
        )
        return FusedAttention(
            (q, k, v, o),
            grid,
            vectors.get("attention_norm"),
            config.rms_norm_eps,
            self._kv_of_head[layer],
            self.cache.layouts[layer],
            pool,
            biases=(q_bias, k_bias, v_bias),
            head_norms_d=(vectors.get("q_norm"), vectors.get("k_norm")),
            value_norm_d=torch.ones(width) if of_layer.value_norms and kv else None,
            own_heads=(own["q"].start, own["k"].start) if of_layer.row_norms else None,
            sinks_n=self._sinks(weights),
            rotated=of_layer.rope.rotated(of_layer.width) if of_layer.rope else 0,
            window=of_layer.window,
            scale=config.factors.scores,
            cap=config.factors.score_cap,
        )

    def _new_ffn(self, layer: int, weights: BlockWeights) -> FusedFFN | None:
        of_layer, pool, (_, grid, *_) = self.config.layers[layer].ffn, self.linear.pool, self._grids[layer]
        matrices = _panels(weights, of_layer.names if of_layer else ())
        if pool is None or of_layer is None or len(matrices) < len(of_layer.names) or grid is None:
            return None
        *gates, up, down = matrices
        gate = gates[0] if gates else None
        biases = self._ffn_bias(weights, layer, "gate"), self._ffn_bias(weights, layer, "up")
        norm_H, eps = weights.vectors.get("ffn_norm"), self.config.rms_norm_eps
        return FusedFFN(norm_H, eps, (gate, up, down), pool, grid, biases, self._activation(layer))

    def _new_experts(self, layer: int, weights: BlockWeights) -> FusedExperts | None:
        of_layer, stored, (_, grid, *_) = (
            self.config.layers[layer].experts,
            weights.experts,
            self._grids[layer],
        )
        pool = self.linear.pool
        if pool is None or of_layer is None or stored is None or grid is None:
            return None
        gate, up, down = stored.of(0)
        if (
            not isinstance(gate, PanelMatrix)
            or not isinstance(up, PanelMatrix)
            or not isinstance(down, PanelMatrix)
        ):
            return None
        return FusedExperts(
            _experts_norm(weights),
            self.config.rms_norm_eps,
            _router(weights, of_layer),
            (gate, up, down),
            stored.nbytes,
            pool,
            grid,
            Activation(of_layer.activation),
            self._expert_biases(weights, layer, of_layer, down.rows),
        )

    def _new_of_inputs(self, layer: int, weights: BlockWeights) -> FusedFFN | None:
        of_layer, pool = self.config.layers[layer].inputs, self.linear.pool
        if of_layer is None or pool is None:
            return None
        grid, matrices = self._grids[layer][2], _panels(weights, ("inputs_gate", "inputs_down"))
        if grid is None or len(matrices) < 2:
            return None
        gate, down = matrices
        return FusedFFN(None, 0.0, (gate, None, down), pool, grid, activation=Activation(of_layer.activation))


def _tiles(columns: Sequence[int], size: int, share: Share) -> Sequence[Share]:
    tiles = [-(-count // size) for count in columns]
    least = min(filter(None, tiles), default=0)
    return [units_of(share, least, own) if own else Share(0) for own in tiles]


def _of_blocks(exponents: Sequence[int], layer: Layer) -> Sequence[int]:
    """Returns the exponents of the blocks' grids. An FFN and experts beside it have one."""
    if layer.sums == 1:
        return exponents
    first, of_experts, of_ffn, *rest = exponents
    return first, max(of_experts, of_ffn), *rest


def _kept(
    made: dict[int, tuple[BlockWeights, T]],
    layer: int,
    weights: BlockWeights,
    make: Callable[[int, BlockWeights], T],
) -> T:
    known = made.get(layer)
    if known is None or known[0] is not weights:
        known = made[layer] = weights, make(layer, weights)
    return known[1]


def _router(weights: BlockWeights, of_layer: Experts) -> Router:
    of_router = weights.vectors[ROUTER].view(of_layer.count, -1)
    bias_E, norm_H, scale_E = map(weights.vectors.get, ("router_bias", "router_norm", "expert_scale"))
    if norm_H is not None:
        norm_H = norm_H * len(norm_H) ** -0.5
    return Router(of_router, of_layer.chosen, of_layer.normalised, bias_E, norm_H, scale_E)


def _experts_norm(weights: BlockWeights) -> Tensor | None:
    return weights.vectors.get("experts_norm", weights.vectors.get("ffn_norm"))


def _panels(weights: BlockWeights, names: Sequence[str]) -> list[PanelMatrix]:
    return [w for w in map(weights.matrices.__getitem__, names) if isinstance(w, PanelMatrix)]


def _projections(of_layer: Attention) -> Mapping[str, str]:
    """Returns what is projected, of q, k and v, and the names of the matrices."""
    return {
        name: f"{name}_whole" if of_layer.row_norms and name != "v" else name for name in of_layer.projections
    }
