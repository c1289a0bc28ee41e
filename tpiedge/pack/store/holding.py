"""What of a pack's layers is on this disk, by units. Reads a small file per layer and takes no lock."""

from functools import reduce
from operator import and_

from tpiedge.pack.held import HeldUnits
from tpiedge.pack.layout import BlobLayout, group_size
from tpiedge.pack.reader import Pack
from tpiedge.pack.store.presence import Presence


def presence_of(pack: Pack, layer: int) -> Presence:
    """The bits of the layer's blob."""
    path = pack.blob_path(layer)
    return Presence(path.parent / f"{path.name}.present", pack.layout(layer).range_count)


def held_units(pack: Pack) -> HeldUnits:
    """The units that are here of every layer."""
    layers = [key for key in pack.unique_keys if isinstance(key, int)]
    held = [_of_layer(pack.layout(layer), presence_of(pack, layer).bits) for layer in layers]
    return HeldUnits(reduce(and_, (one.attention for one in held)), reduce(and_, (one.ffn for one in held)))


def _of_layer(layout: BlobLayout, bits: int) -> HeldUnits:
    def units(name: str) -> int:
        matrix = layout.matrix(name)
        return bits >> matrix.first_range & (1 << matrix.units) - 1

    group, kv_units = group_size(layout), units("k") & units("v")
    covered = sum(
        ((1 << group) - 1) << head * group for head in range(layout.matrix("k").units) if kv_units >> head & 1
    )
    return HeldUnits(units("q") & units("o") & covered, units("gate") & units("up") & units("down"))
