"""What each node holds: intervals of units."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """The units `start <= u < stop`."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not an interval of units: [{self.start}, {self.stop})")

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def units(self) -> range:
        return range(self.start, self.stop)


@dataclass(frozen=True)
class NodeShare:
    """What one node computes of every layer: query heads and FFN tiles, either of which may be empty."""

    attention: Share
    ffn: Share


def kv_share(attention: Share, group_size: int) -> Share:
    """The KV heads that cover the query heads `attention`; `group_size` query heads use one KV head (GQA)."""
    if not len(attention):
        return Share(0, 0)
    return Share(attention.start // group_size, -(-attention.stop // group_size))
