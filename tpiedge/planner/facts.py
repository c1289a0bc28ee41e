"""A pack's numbers for the planner."""

from tpiedge.kernels.kv_format import KVFormat
from tpiedge.memory.sweep import head_tile_bytes
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.partition import LayerShape
from tpiedge.wire.fields import KVPrecision

_F32_BYTES = 4
_SMALLEST = Precision.Q4


def model_facts(pack: Pack, *, head_dim: int, kv: KVPrecision) -> ModelFacts:
    """Bytes of every part of the model in `pack`, as a node holds them in memory.

    `kv`: how the KV cache keeps heads of `head_dim` numbers. All layers have the shape of the first.
    """
    layer, stored = pack.layout(0), KVFormat(kv, head_dim)

    def first(name: str) -> int:
        return layer.matrix(name).unit_nbytes(0)

    def last(name: str) -> int:
        return layer.matrix(name).unit_nbytes(layer.matrix(name).units - 1)

    key, head = pack.head_matrix
    head_layout = pack.layout(key)
    return ModelFacts(
        shape=LayerShape(layer.matrix("q").units, layer.matrix("k").units, layer.matrix("gate").units),
        num_layers=pack.num_layers,
        query_unit_bytes=(first("q"), first("o")),
        kv_unit_bytes=(first("k"), first("v")),
        ffn_tile_bytes=(first("gate"), first("up"), first("down")),
        last_tile_bytes=(last("gate"), last("up"), last("down")),
        resident_bytes=layer.vectors_nbytes,
        head_bytes=head_layout.matrix(head).nbytes + pack.layout("head").vectors_nbytes,
        kv_part_bytes=stored.part_nbytes,
        kv_page_tokens=stored.page_positions,
        head_tile_bytes=head_tile_bytes(pack),
        row_bytes=_F32_BYTES * layer.matrix("q").cols,
        smaller_precision="" if layer.precision is _SMALLEST else _SMALLEST.value,
        quantised=layer.precision.quantised,
        head_quantised=head_layout.precision.quantised,
        needs_native=layer.precision.quantised or stored.quantised,
    )
