"""Intervals of units say what each node computes."""

from dataclasses import dataclass
from typing import TypeAlias

Share: TypeAlias = range
"""Units [start, stop) of a matrix."""


@dataclass(frozen=True)
class NodeShare:
    """The query heads and the FFN tiles of every layer that one node computes; both may be empty."""

    attention: Share
    ffn: Share


def kv_share(attention: Share, group_size: int) -> Share:
    """Returns the KV heads that cover the query heads `attention`; `group_size` query heads use one KV head (GQA)."""
    if not attention:
        return Share(0)
    return Share(attention.start // group_size, -(-attention.stop // group_size))
