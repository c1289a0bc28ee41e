"""The picture of the cluster, look by look."""

from dataclasses import replace

import pytest

from tpiedge.api.cluster import ClusterPicture
from tpiedge.api.service import ClusterStatus, ModelInfo, NodeStatus, RequestLine
from tpiedge.master.status import Totals
from tpiedge.wire.control import Stats

MIB = 1 << 20
MODEL = ModelInfo("demo", 512, 0)
STATS = Stats(
    1, 0, 300 * MIB, 90 * MIB, 2 * MIB, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0.0, 0, 0, 64, 8, 0, 0,
    10 * MIB, 16 * MIB,
)  # fmt: skip
NODE = NodeStatus(
    "master",
    0,
    "ready",
    (0, 4),
    (0, 9),
    2,
    1024 * MIB,
    1e9,
    80 * MIB,
    0.0,
    counters=STATS,
    planned_bytes=500 * MIB,
)


def status(*nodes: NodeStatus, tokens: int = 0, ready: bool = True, epoch: int = 1) -> ClusterStatus:
    return ClusterStatus(ready, "", nodes, 0, 1, epoch, Totals(tokens=tokens))


def after(stats: Stats, steps: int, **seconds: float) -> Stats:
    """`seconds` more of each counter in so many steps more."""
    more = {name: getattr(stats, name) + value for name, value in seconds.items()}
    return replace(stats, steps=stats.steps + steps, **more)  # type: ignore[arg-type]


def picture(*looks: tuple[float, ClusterStatus], requests: tuple[RequestLine, ...] = ()) -> dict:
    one = ClusterPicture()
    for now, seen in looks:
        found = one.of(seen, MODEL, requests, (), (), now)
    return found


def test_memory_adds_up_to_the_budget() -> None:
    memory = picture((0.0, status(NODE)))["machines"][0]["memory"]
    assert memory == {
        "budget_bytes": 1024 * MIB,
        "planned_bytes": 500 * MIB,
        "pinned_bytes": 80 * MIB,
        "window_bytes": 10 * MIB,
        "kv_bytes": 2 * MIB,
        "kv_room_bytes": 4 * MIB,  # 10 MiB more than planned are pinned while the cache is not full
        "kv_reserved_bytes": 16 * MIB,
        "program_bytes": 404 * MIB,
        "free_bytes": 524 * MIB,
        "peak_rss_bytes": 300 * MIB,
    }
    parts = ("pinned", "window", "kv", "kv_room", "program", "free")
    assert sum(memory[f"{part}_bytes"] for part in parts) == memory["budget_bytes"]


def test_before_a_node_has_said_anything_the_plan_counts() -> None:
    memory = picture((0.0, status(replace(NODE, counters=None))))["machines"][0]["memory"]
    assert (memory["pinned_bytes"], memory["kv_bytes"], memory["free_bytes"]) == (80 * MIB, 0, 524 * MIB)


def test_who_waits_least_in_all_reduces_says_what_the_network_takes() -> None:
    other = replace(NODE, name="w-1", rank=1)
    first = status(NODE, other)
    last = status(
        replace(NODE, counters=after(STATS, 10, compute_s=1.0, head_s=0.5, reduce_wait_s=0.25)),
        replace(other, counters=after(STATS, 10, compute_s=0.25, weight_wait_s=0.125, reduce_wait_s=1.0)),
        tokens=20,
    )
    found = picture((0.0, first), (2.0, last))
    assert [one["step"] for one in found["machines"]] == [
        {"compute_s": 0.15, "wait_s": 0.0, "network_s": 0.025, "disk_s": 0.0},
        {"compute_s": 0.025, "wait_s": 0.075, "network_s": 0.025, "disk_s": 0.0125},
    ]
    assert found["totals"]["tokens_per_s"] == 10.0


def test_rates_are_those_between_looks_of_one_epoch() -> None:
    moved = replace(NODE, counters=after(STATS, 1, compute_s=1.0))
    for looks in (
        [(0.0, status(NODE))],
        [(0.0, status(NODE)), (0.5, status(moved, tokens=3))],
        [(0.0, status(NODE)), (2.0, status(moved, tokens=3, epoch=2))],
        [(0.0, status(NODE)), (7.0, status(moved, tokens=3))],
    ):
        found = picture(*looks)
        assert found["totals"]["tokens_per_s"] is None
        assert found["machines"][0]["disk"]["read_bytes_per_s"] is None
    many = [(at / 10, status(NODE, tokens=at)) for at in range(100)]
    assert picture(*many)["totals"]["tokens_per_s"] == pytest.approx(10.0)


def test_a_counter_that_begins_anew_is_no_time() -> None:
    """A node that was started again within an epoch's number says less than before."""
    looks = (0.0, status(replace(NODE, counters=after(STATS, 10, compute_s=5.0)))), (2.0, status(NODE))
    assert picture(*looks)["machines"][0]["step"] is None


@pytest.mark.parametrize(
    ("said", "ready", "rank", "shown"),
    [
        ("ready", True, 0, "serving"),
        ("fetching", True, 1, "serving"),
        ("fetching", True, None, "loading"),
        ("preparing", False, 1, "loading"),
        ("loading", False, 1, "loading"),
        ("waiting", False, None, "waiting"),
        ("left out", True, None, "left out"),
        ("draining", True, 1, "draining"),
        ("lost", True, None, "lost"),
    ],
)
def test_states(said: str, ready: bool, rank: int | None, shown: str) -> None:
    node = replace(NODE, state=said, rank=rank, left_out_s=11.2, last_seen_s=5.7)
    (machine,) = picture((0.0, status(node, ready=ready)))["machines"]
    assert (machine["state"], machine["left_out_s"], machine["silent_s"]) == (shown, 12, 5)


def test_what_stands_still_stays_the_same() -> None:
    line = RequestLine("r-1", "paused", 3.25, 4, 5, 9, 1.23456, "why", 2.75, True)
    one = ClusterPicture()
    found = [one.of(status(NODE), MODEL, (line,), (), (), now) for now in (0.0, 1.0, 2.0)]
    assert found[1] == found[2]
    assert found[2]["requests"][0] == {
        "id": "r-1",
        "state": "paused",
        "age_s": 3,
        "prompt_tokens": 4,
        "tokens": 5,
        "max_tokens": 9,
        "tokens_per_s": 1.235,
        "why": "why",
        "paused_s": 2,
        "attended": True,
    }
