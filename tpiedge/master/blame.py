"""Which worker caused the end of an epoch, as far as a master can know. Pure.

A worker that stays silent towards one other worker, or sends it junk, ends the epoch, and the master cannot tell which
of the two is at fault: that is a dispute. In the star every message passes rank 0, which is the master's own process,
so the sender of junk is known: after a dispute all-reduces go by the star for a while (`session_manager.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpiedge.errors import InternalError, PeerLost, ResourceError, TpiedgeError, UserError
from tpiedge.master.assignments import Assignment
from tpiedge.master.epoch import Epoch, NodeState

#: A rank in the words of a node, which knows no names.
_RANK: Final = re.compile(r"\bnode (\d{1,9})\b(?! \()")


@dataclass(frozen=True)
class Failure:
    """Why a session ended, and which worker caused it, if the master knows one."""

    error: TpiedgeError
    #: The worker that would fail again: it could not prepare its part, or its node failed before it was ready.
    unfit: str | None = None
    #: The worker whose node failed by itself.
    crashed: str | None = None
    #: Whether a node ended by itself or hung, so that a request may be why: it did not merely fall silent, nor was its
    #: link or its machine lost.
    died: bool = False
    #: Whether the session ended because a machine was lost, which may come back at once.
    machine_lost: bool = False
    #: Whether that was somebody's will: the machine's user stopped it, or it was revoked.
    intended: bool = False
    #: In a dispute, where the master cannot tell which of two workers is at fault: the cause. "" otherwise.
    disputed: str = ""


def failure_of(
    error: TpiedgeError,
    epoch: Epoch,
    assignments: Sequence[Assignment],
    linked: bool,
    *,
    starting: bool,
    stalled: bool,
) -> Failure:
    """Attributes the end of `epoch` to the node that was lost first. `linked`: workers are linked with each other;
    `starting`: not every node was ready yet; `stalled`: a request runs, and nothing was computed for so long that a
    node which gives up waited for a hung one. Only a node that is linked with other workers can lose one of them. Where
    every node has a link to rank 0 alone, a node that gives up over another worker is itself at fault."""
    rank = next((member.rank for member in epoch.members if member.state is NodeState.LOST), None)
    if rank is None:
        return Failure(_with_host(error, None, assignments))
    worker = assignments[rank].machine or None
    blames_other = rank in epoch.disputing
    disputed = blames_other and linked
    by_itself = rank not in epoch.gave_up or (blames_other and not disputed)
    return Failure(
        _with_host(error, rank, assignments),
        unfit=worker if starting and not disputed else None,
        crashed=worker if by_itself else None,
        disputed=str(error) if disputed else "",
        died=rank in epoch.failed or (stalled and bool(epoch.gave_up)),
    )


def _with_host(error: TpiedgeError, rank: int | None, assignments: Sequence[Assignment]) -> TpiedgeError:
    """Adds the machine's name: the epoch knows ranks alone, and a worker's own error does not say where it was."""
    if isinstance(error, PeerLost):

        def named(found: re.Match[str]) -> str:
            known = int(found[1]) < len(assignments)
            return f"{found[0]} ({machine_words(assignments[int(found[1])])})" if known else found[0]

        cause = _RANK.sub(named, error.cause)
        return PeerLost(error.rank, error.waited_for, cause, machine_words(assignments[error.rank]))
    if rank and isinstance(error, UserError | ResourceError | InternalError):
        return type(error)(f"on node {rank} ({assignments[rank].host}): {error}")
    return error


def machine_words(assignment: Assignment) -> str:
    return assignment.host or assignment.machine or "the master"
