"""From what the control thread knows to a snapshot for everybody else."""

import math
from collections.abc import Mapping

from tpiedge.nodes.desk import Desk
from tpiedge.nodes.quarantine import Exclusion
from tpiedge.nodes.rank_zero import RankZero
from tpiedge.nodes.roster import Machine, Roster
from tpiedge.nodes.seats import Fetching
from tpiedge.nodes.session import Phase, Session
from tpiedge.nodes.stage import Stage
from tpiedge.nodes.status import ClusterStatus, NodeStatus
from tpiedge.wire.control import Stats

__all__ = ["survey"]

_NOTHING = Fetching(0, 0, 0.0)


def survey(
    roster: Roster,
    stage: Stage,
    desk: Desk,
    left_out: Mapping[str, Exclusion],
    spare: Mapping[str, str],
    reason: str,
    now: float,
) -> ClusterStatus:
    """The state of the cluster now. `spare`: why machines have no part in the plan."""
    serving = stage.serving
    ready = serving is not None and serving.phase is Phase.READY
    routing = serving.routing if ready and serving is not None else None
    workers = [
        _worker(
            machine,
            stage,
            left_out.get(machine.name),
            spare.get(machine.name, "the plan has no part for it"),
            now,
        )
        for machine in roster.machines
    ]
    return ClusterStatus(
        ready=ready,
        reason=reason,
        nodes=(_own(serving, stage.rank_zero), *workers),
        queued=desk.waiting,
        running=int(desk.running),
        epoch=serving.number if serving is not None else 0,
        totals=desk.totals,
        collective=routing.collective if routing else "",
        bulk_collective=routing.bulk_collective if routing else "",
        collective_why=routing.why if routing else "",
    )


def _own(serving: Session | None, rank_zero: RankZero) -> NodeStatus:
    seat = serving.seats[0] if serving is not None else None
    return NodeStatus(
        name="master",
        rank=0 if seat else None,
        state=_state(serving, 0),
        attention=(seat.share.attention.start, seat.share.attention.stop) if seat else (0, 0),
        ffn=(seat.share.ffn.start, seat.share.ffn.stop) if seat else (0, 0),
        threads=rank_zero.threads,
        memory_bytes=seat.memory_bytes if seat else 0,
        speed=seat.speed if seat else 0.0,
        weight_bytes=seat.weight_bytes if seat else 0,
        last_seen_s=0.0,
        why=seat.why if seat else "",
        pid=rank_zero.pid,
        counters=_counters(serving, 0),
    )


def _worker(
    machine: Machine,
    stage: Stage,
    exclusion: Exclusion | None,
    why_spare: str,
    now: float,
) -> NodeStatus:
    serving, coming = stage.serving, stage.coming
    rank = _rank(machine.name, serving)
    seat = serving.seats[rank] if serving is not None and rank is not None else None
    fetching = coming.fetching.get(machine.name, _NOTHING) if coming is not None else _NOTHING
    state, why = _situation(machine, serving, coming, rank, why_spare)
    if exclusion is not None:
        rest_s = max(1, math.ceil(exclusion.until - now))
        state, why = "left out", f"{exclusion.cause} (for another {rest_s} s)"
    return NodeStatus(
        name=machine.name,
        rank=rank,
        state=state,
        attention=(seat.share.attention.start, seat.share.attention.stop) if seat else (0, 0),
        ffn=(seat.share.ffn.start, seat.share.ffn.stop) if seat else (0, 0),
        threads=machine.offer.threads,
        memory_bytes=machine.offer.memory_bytes,
        speed=machine.offer.capacity.speed(stage.served.quantised),
        weight_bytes=seat.weight_bytes if seat else 0,
        last_seen_s=max(0.0, now - machine.heard),
        why=seat.why if seat and not why else why,
        host=machine.offer.host,
        fetched_bytes=fetching.done_bytes,
        fetch_total_bytes=fetching.total_bytes,
        fetch_bytes_per_s=fetching.bytes_per_s,
        counters=_counters(serving, rank),
    )


def _situation(
    machine: Machine, serving: Session | None, coming: Session | None, rank: int | None, why_spare: str
) -> tuple[str, str]:
    """State and, where that needs one, the reason."""
    if not machine.present:
        return "lost", machine.cause
    if coming is not None and machine.name in coming.machines:
        return coming.progress(machine.name), ""
    if rank is not None:
        return _state(serving, rank), ""
    return "spare", why_spare


def _state(serving: Session | None, rank: int) -> str:
    if serving is None or serving.epoch is None or rank >= len(serving.epoch.members):
        return "waiting"
    return serving.epoch.members[rank].state.value


def _counters(serving: Session | None, rank: int | None) -> Stats | None:
    return serving.counters.get(rank) if serving is not None and rank is not None else None


def _rank(name: str, serving: Session | None) -> int | None:
    if serving is None:
        return None
    return next((rank for rank, seat in enumerate(serving.seats) if seat.machine == name), None)
