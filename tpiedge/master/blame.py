"""Finds the worker that caused the end of an epoch. Pure.

A worker may be silent towards another worker, or send it junk. The master then cannot tell which of the two is at
fault. This is a dispute. In the star, every message passes rank 0. The master trusts rank 0."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpiedge.errors import InternalError, PeerLost, ResourceError, TpiedgeError, UserError
from tpiedge.master.assignments import Assignment
from tpiedge.master.epoch import Epoch, NodeState
from tpiedge.master.workers import Fault

_RANK: Final = re.compile(r"\bnode (\d{1,9})\b(?! \()")


@dataclass(frozen=True)
class Failure:
    """The end of a session, and the worker at fault if known. `fault`: "unfit" before all nodes were ready, later
    "died"."""

    error: TpiedgeError
    worker: str | None = None
    fault: Fault = ""
    died: bool = False  # a node ended by itself or hung, perhaps because of a request
    machine_lost: bool = False  # it may come back at once
    intended: bool = False  # the machine was stopped by its user, or revoked
    disputed: str = ""  # the cause of a dispute


def failure_of(
    error: TpiedgeError, epoch: Epoch, assignments: Sequence[Assignment], *, linked: bool, stalled: bool
) -> Failure:
    """Attributes the end of `epoch` to the node lost first. `linked`: workers have links with each other. `stalled`: a
    node waited for a hung node."""
    lost = next((member for member in epoch.members if member.state is NodeState.LOST), None)
    if lost is None:
        return Failure(_with_host(error, None, assignments))
    rank = lost.rank
    disputed = lost.disputes and linked
    unfit = not epoch.started and not disputed
    # Without links between workers, a node that gives up over another worker is itself at fault.
    at_fault = unfit or not lost.gave_up or (lost.disputes and not disputed)
    return Failure(
        _with_host(error, rank, assignments),
        worker=(assignments[rank].machine or None) if at_fault else None,
        fault="unfit" if unfit else "died",
        disputed=str(error) if disputed else "",
        died=lost.failed or (stalled and any(member.gave_up for member in epoch.members)),
    )


def _with_host(error: TpiedgeError, rank: int | None, assignments: Sequence[Assignment]) -> TpiedgeError:
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
