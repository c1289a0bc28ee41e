"""Which nodes of an epoch are linked with each other, and which end of a link connects. Pure."""

from tpiedge.wire.fields import CollectiveChoice


def are_linked(size: int, collective: CollectiveChoice) -> bool:
    """Whether every node is to have a link to every other, and not to rank 0 alone."""
    return size == 2 or collective != "star"


def connects_to(rank: int, size: int, collective: CollectiveChoice) -> range:
    """The ranks that `rank` connects to: all below it, or rank 0."""
    return range(rank if are_linked(size, collective) else min(rank, 1))


def listens(rank: int, size: int, collective: CollectiveChoice) -> bool:
    """Whether any other rank connects to `rank`."""
    return rank < size - 1 and (rank == 0 or are_linked(size, collective))
