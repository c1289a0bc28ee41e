"""Defines shares: intervals of units that say what a node computes."""

from dataclasses import dataclass
from typing import TypeAlias

Share: TypeAlias = range
"""Units [start, stop) of a matrix."""


@dataclass(frozen=True)
class NodeShare:
    """The query heads and FFN tiles that one node computes in every layer."""

    attention: Share
    ffn: Share


def kv_share(attention: Share, group_size: int) -> Share:
    """Returns the KV heads that `attention` needs. `group_size`: query heads per KV head."""
    if not attention:
        return Share(0)
    return Share(attention.start // group_size, -(-attention.stop // group_size))
