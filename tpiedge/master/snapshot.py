"""Makes the status that other threads read, from the control thread's state."""

from collections.abc import Mapping

from tpiedge.master.assignments import Fetching
from tpiedge.master.counters import Counted
from tpiedge.master.history import PlanHistory
from tpiedge.master.rank_zero import RankZero
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Phase, Session
from tpiedge.master.session_manager import SessionManager
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.planner.reasons import SpareReason
from tpiedge.wire.epochs import Stocked

_NOTHING = Fetching(0, 0, 0.0)
_UNKNOWN = Stocked(0, 0, 0, False, "")
_LEAVES = "a plan without it is on its way; until then it computes"


def snapshot(
    roster: Roster,
    sessions: SessionManager,
    requests: RequestQueue,
    spare: Mapping[str, SpareReason],
    stocked: Mapping[str, Stocked],
    reason: str,
    now: float,
    history: PlanHistory,
) -> ClusterStatus:
    """The state of the cluster now. `spare` says why machines have no part in the plan, `stocked` what is on their
    disks."""
    serving = sessions.serving
    ready = serving is not None and serving.phase is Phase.READY
    routing = serving.routing if ready and serving is not None else None
    workers = [
        _worker(
            machine,
            sessions,
            spare.get(machine.name),
            stocked.get(machine.name, _UNKNOWN),
            now,
        )
        for machine in roster.machines
    ]
    return ClusterStatus(
        ready=ready,
        reason=reason,
        nodes=(_own(serving, sessions.rank_zero), *workers),
        queued=requests.waiting,
        running=requests.running,
        epoch=serving.number if serving is not None else 0,
        totals=requests.totals,
        collective=routing.collective if routing else "",
        bulk_collective=routing.bulk_collective if routing else "",
        collective_why=routing.why if routing else "",
        links=routing.links if routing else (),
        split_shows=serving.split_shows if ready and serving is not None else "",
        history=history,
    )


def _own(serving: Session | None, rank_zero: RankZero) -> NodeStatus:
    assignment = serving.assignments[0] if serving is not None else None
    return NodeStatus(
        name="master",
        rank=0 if assignment else None,
        state=_state(serving, 0),
        attention=(assignment.share.attention.start, assignment.share.attention.stop)
        if assignment
        else (0, 0),
        ffn=(assignment.share.ffn.start, assignment.share.ffn.stop) if assignment else (0, 0),
        threads=rank_zero.threads,
        memory_bytes=rank_zero.memory_bytes,
        speed=assignment.speed if assignment else 0.0,
        weight_bytes=assignment.weight_bytes if assignment else 0,
        last_seen_s=0.0,
        why=assignment.why if assignment else "",
        pid=rank_zero.pid,
        counted=_counted(serving, 0),
        planned_bytes=assignment.planned_bytes if assignment else 0,
    )


def _worker(
    machine: Machine,
    sessions: SessionManager,
    spare: SpareReason | None,
    stocked: Stocked,
    now: float,
) -> NodeStatus:
    serving, coming = sessions.serving, sessions.coming
    rank = _rank(machine.name, serving)
    assignment = serving.assignments[rank] if serving is not None and rank is not None else None
    fetching = coming.fetching.get(machine.name, _NOTHING) if coming is not None else _NOTHING
    state, reason = _situation(machine, serving, coming, rank, spare)
    why = reason.why if isinstance(reason, SpareReason) else reason
    return NodeStatus(
        name=machine.name,
        rank=rank,
        state=state,
        attention=(assignment.share.attention.start, assignment.share.attention.stop)
        if assignment
        else (0, 0),
        ffn=(assignment.share.ffn.start, assignment.share.ffn.stop) if assignment else (0, 0),
        threads=machine.offer.threads,
        memory_bytes=machine.offer.memory_bytes,
        speed=machine.offer.capacity.speed(sessions.served.quantised) / machine.slowdown,
        weight_bytes=assignment.weight_bytes if assignment else 0,
        last_seen_s=max(0.0, now - machine.heard),
        why=_paced(assignment.why, machine) if assignment and not why else why,
        host=machine.offer.host,
        fetched_bytes=fetching.done_bytes,
        fetch_total_bytes=fetching.total_bytes,
        fetch_bytes_per_s=fetching.bytes_per_s,
        counted=_counted(serving, rank),
        spare=reason.kind if isinstance(reason, SpareReason) else "",
        disk_bytes=stocked.held_bytes,
        stocked=stocked.complete,
        not_stocked=stocked.why,
        planned_bytes=assignment.planned_bytes if assignment else 0,
        round_trip_s=machine.link.round_trip_s if machine.link is not None else 0.0,
        link_bytes_per_s=machine.link.bytes_per_s if machine.link is not None else 0.0,
        left_out_s=max(0.0, machine.standing.until - now) if state == "left out" else 0.0,
    )


def _paced(why: str, machine: Machine) -> str:
    """With what was found out of its speed."""
    if machine.slowdown == 1:
        return why
    return f"{why}; its arithmetic takes {machine.slowdown:.1f} times as long as it measured"


def _situation(
    machine: Machine,
    serving: Session | None,
    coming: Session | None,
    rank: int | None,
    spare: SpareReason | None,
) -> tuple[str, SpareReason | str]:
    """(state, reason); "" where the state needs no reason."""
    if not machine.present:
        if spare is not None and spare.kind == "too small":  # it left when it heard that
            return "lost", spare
        return "lost", machine.cause
    has_part = rank is not None or (coming is not None and machine.name in coming.machines)
    if machine.drained:
        return ("draining", _LEAVES) if has_part else ("drained", spare or "")
    if coming is not None and machine.name in coming.machines:
        return coming.progress(machine.name), ""
    if rank is not None:
        return _state(serving, rank), ""
    if spare is not None and spare.kind == "excluded":
        return "left out", spare
    return "spare", spare or "the plan has no part for it"


def _state(serving: Session | None, rank: int) -> str:
    if serving is None or serving.epoch is None or rank >= len(serving.epoch.members):
        return "waiting"
    return serving.epoch.members[rank].state.value


def _counted(serving: Session | None, rank: int | None) -> Counted | None:
    return serving.counted(rank) if serving is not None and rank is not None else None


def _rank(name: str, serving: Session | None) -> int | None:
    if serving is None:
        return None
    return next(
        (rank for rank, assignment in enumerate(serving.assignments) if assignment.machine == name), None
    )
