"""Defines shares: intervals of layers and units that say what a node computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tpiedge.errors import UserError
from tpiedge.wire.fields import ShareRanges, UnitRange

Axis: TypeAlias = Literal["attention", "ffn", "experts"]
"""Its units are divided among nodes: query heads, tiles of the narrowest FFN, or columns of every expert."""
Share: TypeAlias = range
"""Units [start, stop) of a matrix or an axis."""
_NOTHING: Final = Share(0)


@dataclass(frozen=True)
class NodeShare:
    """The layers that one node computes, and its units along each axis. It has no units along other axes."""

    layers: Share
    axes: Mapping[Axis, Share]

    def __hash__(self) -> int:
        return hash((self.layers, frozenset(self.axes.items())))

    def along(self, axis: Axis) -> Share:
        return self.axes.get(axis, _NOTHING)

    @property
    def ranges(self) -> ShareRanges:
        """The share in messages."""
        axes = ((axis, ends(units)) for axis, units in self.axes.items() if units)
        return ShareRanges(ends(self.layers), tuple(axes))


def ends(share: Share) -> UnitRange:
    return share.start, share.stop


def kv_share(attention: Share, group_size: int) -> Share:
    """Returns the KV heads that `attention` needs. `group_size`: query heads per KV head."""
    if not attention:
        return Share(0)
    return Share(attention.start // group_size, -(-attention.stop // group_size))


def units_of(share: Share, axis_units: int, units: int) -> Share:
    """Returns which of a matrix's units belong to `share` of an axis: ceil(units / axis_units) for each axis unit. In a
    matrix with fewer units than the axis, several axis units need the same unit. Raises UserError."""
    if share and (share.stop > axis_units or (units < axis_units and axis_units % units)):
        part = f"units [{share.start}, {share.stop}) of {axis_units}"
        raise UserError(f"pack layout: {part} do not go with a matrix of {units}; pack again")
    if units == axis_units:
        return share
    if units < axis_units:
        return kv_share(share, axis_units // units)
    each = -(-units // axis_units) if share else 0
    return Share(min(share.start * each, units), min(share.stop * each, units))
