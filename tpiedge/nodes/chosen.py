"""What is said of the collectives that rank 0 has chosen."""

import logging

from tpiedge.wire.control import Ready
from tpiedge.wire.fields import Choice

__all__ = ["log_chosen", "ways_of"]

_log = logging.getLogger(__name__)


def ways_of(collective: str, bulk_collective: str) -> str:
    """Of the all-reduces of a token, and of those of a prompt's chunks where they go another way."""
    return collective if collective == bulk_collective else f"{collective} (prompts: {bulk_collective})"


def log_chosen(epoch: int, wanted: Choice, ready: Ready) -> None:
    """For whoever runs the master: a warning where it is not what was asked for."""
    if not ready.collective:
        return  # a node alone adds nothing up
    found = {ready.collective, ready.bulk_collective}
    level = logging.INFO if wanted == "auto" or found == {wanted} else logging.WARNING
    ways = ways_of(ready.collective, ready.bulk_collective)
    _log.log(level, "epoch %d: all-reduces go by %s: %s", epoch, ways, ready.why or "as wanted")
