"""Facts of models whose layers are alike."""

from collections.abc import Sequence
from typing import Any

from tpiedge.planner.needs import LayerShape, MatrixFacts, ModelFacts


def alike(
    layers: int,
    shape: LayerShape,
    matrices: tuple[Sequence[int], Sequence[int], Sequence[int]],
    last: Sequence[int] | None = None,
    kv: tuple[int, int] = (8192, 8),
    **others: Any,
) -> ModelFacts:
    """`matrices`: bytes of a unit of (q and o, k and v, gate, up and down). `last`: bytes of the FFN's last tiles.
    `kv`: bytes of a page of one KV head in a layer, and its tokens."""
    heads, keys, tiles = matrices
    attention = [
        MatrixFacts("attention", units, nbytes, nbytes)
        for units, sizes in ((shape.heads, heads), (shape.kv_heads, keys))
        for nbytes in sizes
    ]
    ffn = [MatrixFacts("ffn", shape.ffn_tiles, *sizes) for sizes in zip(tiles, last or tiles, strict=True)]
    return ModelFacts(
        shape,
        dict.fromkeys((tuple(attention), tuple(ffn)), layers),
        {shape.kv_heads: layers * kv[0]},
        kv_page_tokens=kv[1],
        **others,
    )
