"""Defines shares: intervals of units that say what a node computes."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpiedge.errors import UserError

Axis: TypeAlias = Literal["attention", "ffn"]
"""Its units are divided among nodes: query heads, or tiles of the narrowest FFN."""
Share: TypeAlias = range
"""Units [start, stop) of a matrix or an axis."""


@dataclass(frozen=True)
class NodeShare:
    """The query heads and FFN tiles that one node computes in every layer."""

    attention: Share
    ffn: Share

    def along(self, axis: Axis) -> Share:
        return self.attention if axis == "attention" else self.ffn


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
    if units < axis_units:
        return kv_share(share, axis_units // units)
    each = -(-units // axis_units) if share else 0
    return Share(min(share.start * each, units), min(share.stop * each, units))
