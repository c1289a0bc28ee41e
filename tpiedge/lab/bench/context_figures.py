"""Compares answers, whose KV pages were read from disk, with the disk's rate and with computing. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from tpiedge.errors import PeerError
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.serve_figures import TimedAnswer, spread_of

READ_RATIO: Final = 1.2
"""The bound of the time for pages, in times that the disk takes for as many bytes."""
RESTORE_S: Final = 0.2
"""Seconds of a first token after a restart that the bound allows beside its pages and its new tokens."""
TURN_S: Final = 0.3
"""The same for a further turn of a conversation."""
RESTORE_FASTER: Final = 30.0
STREAMS_RATIO: Final = 0.8
KEEPING_COST: Final = 0.02


@dataclass(frozen=True, slots=True)
class PagedAnswer:
    """An answer whose pages of `nbytes`, on all machines, were read from a disk that gives `bytes_per_s`. The bound of
    its first token allows `apart_s` for everything but the pages."""

    first_s: float
    cached_tokens: int
    nbytes: int
    bytes_per_s: float
    apart_s: float

    @property
    def disk_s(self) -> float:
        return self.nbytes / self.bytes_per_s

    @property
    def bound_s(self) -> float:
        return READ_RATIO * self.disk_s + self.apart_s

    @property
    def ratio(self) -> float | None:
        """The time for pages, in times that the disk takes. None if no page was read."""
        return (self.first_s - self.apart_s) / self.disk_s if self.nbytes else None


@dataclass(frozen=True, slots=True)
class Restored:
    """A prompt's first token: computed, and after a restart."""

    computed_s: float
    again: PagedAnswer


def first_s(answer: TimedAnswer) -> float:
    """Returns the seconds to an answer's first token. Raises PeerError if the answer failed."""
    if answer.error or answer.first_s is None:
        raise PeerError(f"the server did not answer a prompt: {answer.error or 'no token came'}")
    return answer.first_s


def seconds_per_token(answers: Sequence[TimedAnswer]) -> float:
    """Returns the median of the answers' times per token. Raises PeerError if one failed or has a single token."""
    found = []
    for answer in answers:
        first_s(answer)
        if not answer.gaps_s:
            raise PeerError("an answer had too few tokens to tell the time per token")
        found.append(fmean(answer.gaps_s))
    return median(found)


def restore_record(found: Sequence[Restored]) -> dict[str, Any]:
    """Returns the record of prompts that came back after a restart."""
    return {
        "computed_s": spread([one.computed_s for one in found]),
        **paged_record([one.again for one in found]),
        "times_faster": spread([one.computed_s / one.again.first_s for one in found]),
        "times_faster_bound": RESTORE_FASTER,
    }


def paged_record(found: Sequence[PagedAnswer]) -> dict[str, Any]:
    return {
        "first_token_s": spread([one.first_s for one in found]),
        "cached_tokens": spread([one.cached_tokens for one in found]),
        "bytes": spread([one.nbytes for one in found]),
        "disk_bytes_per_s": spread([one.bytes_per_s for one in found]),
        "disk_s": spread([one.disk_s for one in found]),
        "apart_s": spread([one.apart_s for one in found]),
        "bound_s": spread([one.bound_s for one in found]),
        "ratio": spread_of(found, lambda one: one.ratio),
        "ratio_bound": READ_RATIO,
        "answers": len(found),
        "within_bound": sum(one.first_s <= one.bound_s for one in found),
        "without_pages": sum(not one.nbytes for one in found),
    }


def streams_record(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns the record of all streams' tokens per second by setting. Compares runs of the same repeat."""
    pairs = {name: zip(rates, found["room"], strict=True) for name, rates in found.items()}
    return {
        "tokens_per_s": {name: spread(rates) for name, rates in found.items()},
        "to_room": {name: spread([rate / room for rate, room in pairs[name]]) for name in found},
        "disk_to_room_bound": STREAMS_RATIO,
    }


def keeping_record(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns the record of the seconds per token, with and without keeping. Compares runs of the same repeat."""
    pairs = zip(found["kept"], found["none"], strict=True)
    return {
        "s_per_token": {name: spread(seconds) for name, seconds in found.items()},
        "cost": spread([kept / none - 1 for kept, none in pairs]),
        "cost_bound": KEEPING_COST,
    }
