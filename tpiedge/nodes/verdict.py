"""Whose doing the end of an epoch was, as far as a master can know, and the words for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.errors import InternalError, PeerLost, ResourceError, TpiedgeError, UserError
from tpiedge.nodes.epoch import Epoch
from tpiedge.nodes.linking import are_linked
from tpiedge.nodes.membership import State
from tpiedge.nodes.seats import Seat
from tpiedge.wire.fields import Choice

__all__ = ["Verdict", "first_lost", "judge", "with_host"]


@dataclass(frozen=True)
class Verdict:
    """Of the node that was lost first. `quarrel`: it is one worker's word on another, and nobody knows who is right;
    `guilty`: it would do the same again in the next epoch; `failed`: it failed by itself."""

    quarrel: bool
    guilty: bool
    failed: bool


def judge(epoch: Epoch, rank: int, size: int, collective: Choice) -> Verdict:
    """Who has a link to rank 0 alone and gives up over another worker speaks of what it cannot know."""
    accuses = rank in epoch.at_odds
    quarrel = accuses and size > 2 and are_linked(size, collective)
    return Verdict(quarrel, not quarrel, rank not in epoch.bereft or (accuses and not quarrel))


def first_lost(epoch: Epoch | None) -> int | None:
    """The rank of the first node that was lost, if one was."""
    members = epoch.members if epoch is not None else ()
    return next((member.rank for member in members if member.state is State.LOST), None)


def with_host(error: TpiedgeError, rank: int | None, seats: Sequence[Seat]) -> TpiedgeError:
    """The epoch knows ranks alone, and a worker's own error only what is wrong there."""
    if isinstance(error, PeerLost):
        return PeerLost(error.rank, error.waited_for, error.cause, seats[error.rank].host)
    if rank and isinstance(error, UserError | ResourceError | InternalError):
        return type(error)(f"on node {rank} ({seats[rank].host}): {error}")
    return error
