from msgspec import structs

from tests.unit.master.players import STATS
from tpiedge.master.counters import RequestWatch
from tpiedge.master.epoch import Member, NodeState

LIMIT_S = 60.0


def members(block: int = 0) -> list[Member]:
    return [Member(0, NodeState.READY, 0.0, step=1, block=block), Member(1, NodeState.READY, 0.0)]


def running() -> RequestWatch:
    watch = RequestWatch()
    watch.look(members(), 0.0)
    watch.add("r-1", 0.0)
    return watch


def test_without_a_request_nothing_is_stuck() -> None:
    watch = RequestWatch()
    assert watch.quiet_s(1e6) == 0.0
    watch = running()
    watch.remove("r-1", 1.0)
    watch.advance(1.0)
    assert watch.quiet_s(1e6) == 0.0


def test_request_without_progress_is_stuck() -> None:
    watch = running()
    assert watch.quiet_s(LIMIT_S) <= LIMIT_S
    watch.look(members(), LIMIT_S)
    assert watch.quiet_s(LIMIT_S + 1.0) == LIMIT_S + 1.0


def test_progress_of_one_request_counts_for_all() -> None:
    watch = running()
    watch.add("r-2", 50.0)
    assert watch.running == {"r-1", "r-2"}
    assert watch.quiet_s(61.0) == 61.0, "that another one came is none"
    watch.advance(61.0)
    assert watch.quiet_s(121.0) <= LIMIT_S
    watch.remove("r-1", 121.0)
    assert watch.quiet_s(181.0) <= LIMIT_S
    assert watch.quiet_s(182.0) == 61.0, "the other one still runs"
    watch.remove("r-2", 182.0)
    assert watch.quiet_s(1e6) == 0.0
    watch.add("r-3", 1e6)
    assert watch.quiet_s(1e6 + 60.0) <= LIMIT_S


def test_alternating_node_position_is_no_progress() -> None:
    watch = running()
    watch.look(members(block=1), 10.0)
    for second in range(11, 70):
        watch.look(members(block=second % 2), float(second))
    assert watch.quiet_s(71.0) == 61.0


def test_changed_compute_stats_of_rank_0_are_progress() -> None:
    """The first answer says nothing of the time before, and more memory is no progress."""
    watch = running()
    watch.measured(STATS, 20.0)
    watch.measured(structs.replace(STATS, peak_rss_bytes=2, kv_bytes=2, kv_pages=2, kv_pages_used=2), 30.0)
    assert watch.quiet_s(61.0) == 61.0
    watch.measured(structs.replace(STATS, bytes_received=9, dropped=9, refused=9), 60.5)
    assert watch.quiet_s(61.0) == 61.0, "a connection to its port is no progress"
    watch.measured(structs.replace(STATS, compute_s=1.0), 61.0)
    assert watch.quiet_s(121.0) <= LIMIT_S
    watch.advance(121.0)
    watch.measured(structs.replace(STATS, compute_s=9.0), 140.0)
    assert watch.quiet_s(182.0) == 61.0
