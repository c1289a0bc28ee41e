"""A pack's numbers for the planner."""

from tpiedge.memory.sweep import head_tile_bytes
from tpiedge.pack.reader import Pack
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.partition import Shape

__all__ = ["model_facts"]

_F32_BYTES = 4


def model_facts(pack: Pack, *, head_dim: int, kv_itemsize: int) -> ModelFacts:
    """Bytes of every part of the model in `pack`, as a node holds them in memory.

    `kv_itemsize` is the size of one number in the KV cache. All layers have the shape of the first.
    """
    layer = pack.layout(0)

    def unit_bytes(*names: str, last: bool = False) -> int:
        spans = [(matrix := layer.matrix(name)).span(*_unit(matrix.units, last)) for name in names]
        return sum(length for _, length in spans)

    key, head = pack.head_matrix
    return ModelFacts(
        shape=Shape(layer.matrix("q").units, layer.matrix("k").units, layer.matrix("gate").units),
        num_layers=pack.num_layers,
        query_unit_bytes=unit_bytes("q", "o"),
        kv_unit_bytes=unit_bytes("k", "v"),
        ffn_tile_bytes=unit_bytes("gate", "up", "down"),
        last_tile_bytes=unit_bytes("gate", "up", "down", last=True),
        resident_bytes=layer.vectors_nbytes,
        head_bytes=pack.layout(key).matrix(head).nbytes + pack.layout("head").vectors_nbytes,
        kv_token_bytes=2 * head_dim * kv_itemsize,
        head_tile_bytes=head_tile_bytes(pack),
        row_bytes=_F32_BYTES * layer.matrix("q").cols,
    )


def _unit(units: int, last: bool) -> tuple[int, int]:
    return (units - 1, units) if last else (0, 1)
