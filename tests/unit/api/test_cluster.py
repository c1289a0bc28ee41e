from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tpiedge.api.cluster import ClusterPicture
from tpiedge.api.timeline import shown_step
from tpiedge.local.served_models import ServedModel
from tpiedge.master.counters import Counted, StepTimeline
from tpiedge.master.journal import RequestLine
from tpiedge.master.request_times import Reading, Totals
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.wire.control import Stats, StepSpans, WorkerLink

MIB = 1 << 20
MODEL = ServedModel("demo", 512, 0)
STATS = Stats(
    1, 0, 300 * MIB, 90 * MIB, 2 * MIB, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0.0, 0, 0, 64, 8, 0, 0,
    10 * MIB, 16 * MIB, 0, 0, 0, 0, 0.0, 0.0, 0,
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
    counted=Counted(STATS, STATS, 0.0),
    planned_bytes=500 * MIB,
)
OTHER = replace(NODE, name="w-1", rank=1, host="ann")


def status(*nodes: NodeStatus, tokens: int = 0, ready: bool = True, epoch: int = 1) -> ClusterStatus:
    return ClusterStatus(ready, "", nodes, 0, 1, epoch, Totals(tokens=tokens))


def after(stats: Stats, steps: int, **seconds: float) -> Stats:
    more = {name: getattr(stats, name) + value for name, value in seconds.items()}
    return structs.replace(stats, steps=stats.steps + steps, **more)  # type: ignore[arg-type]


def counted(node: NodeStatus, spent_s: float, steps: int, **more: float) -> NodeStatus:
    return replace(node, counted=Counted(after(STATS, steps, **more), STATS, spent_s))


def sender(client: str) -> dict[str, str] | None:
    return {"kind": "address", "name": client} if client else None


def pictures(*requests: RequestLine) -> ClusterPicture:
    service: Any = SimpleNamespace(model=lambda: MODEL, request_lines=lambda: requests, events=lambda: ())
    return ClusterPicture(service, sender)


def picture(
    *looks: tuple[float, ClusterStatus],
    timeline: StepTimeline | None = None,
) -> dict[str, Any]:
    one = pictures()
    for now, seen in looks:
        shown = shown_step(timeline, seen.nodes, seen.epoch)
        found: dict[str, Any] = one.of(seen, (), shown, now)
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


def test_token_rate_is_measured_between_looks_of_one_epoch() -> None:
    for looks in (
        [(0.0, status(NODE))],
        [(0.0, status(NODE)), (0.5, status(NODE, tokens=3))],
        [(0.0, status(NODE)), (2.0, status(NODE, tokens=3, epoch=2))],
        [(0.0, status(NODE)), (7.0, status(NODE, tokens=3))],
    ):
        assert picture(*looks)["totals"]["tokens_per_s"] is None
    many = [(at / 10, status(NODE, tokens=at)) for at in range(100)]
    assert picture(*many)["totals"]["tokens_per_s"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("spent_s", "rates"), [(0.0, (None,) * 4), (0.4, (None,) * 4), (2.0, (3 * MIB, MIB, 0, 2 * MIB))]
)
def test_machine_rates_are_measured_between_node_reports(
    spent_s: float, rates: tuple[int | None, ...]
) -> None:
    moved = counted(NODE, spent_s, 1, disk_read_bytes=6 * MIB, bytes_sent=2 * MIB, left_bytes=4 * MIB)
    for looks in ([(0.0, status(moved))], [(0.0, status(NODE)), (0.1, status(moved))]):
        (machine,) = picture(*looks)["machines"]
        disk = machine["disk"]
        pages = disk["kv_read_bytes_per_s"], disk["kv_written_bytes_per_s"]
        assert (disk["read_bytes_per_s"], machine["sent_bytes_per_s"], *pages) == rates


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
def test_machine_state_follows_node_state(said: str, ready: bool, rank: int | None, shown: str) -> None:
    node = replace(NODE, state=said, rank=rank, left_out_s=11.2, last_seen_s=5.7)
    (machine,) = picture((0.0, status(node, ready=ready)))["machines"]
    assert (machine["state"], machine["left_out_s"], machine["silent_s"]) == (shown, 12, 5)


def test_cluster_state_is_unchanged_while_nothing_happens() -> None:
    line = RequestLine("r-1", "paused", 3.25, 4, 5, 9, 1.23456, "why", 2.75, True)
    one = pictures(line)
    found: list[Any] = [one.of(status(NODE), (), None, now) for now in (0.0, 1.0, 2.0)]
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
        "sender": None,
        "reading": None,
    }


#: Rank 0 announces the step, sends what to compute with, and computes twice; w-1 is slower at first, and its first span
#: begins 100 us later than rank 0's.
LEAD = StepSpans(
    1,
    0,
    7,
    1,
    ((0, 50), (150, 300), (600, 800), (900, 1000)),
    ((50, 100), (100, 150), (300, 600), (800, 900)),
    (),
)
WORKER = StepSpans(1, 1, 7, 1, ((50, 450), (500, 600)), ((0, 50), (450, 500), (600, 800)), ((100, 200),))


def timeline(*spans: StepSpans, epoch: int = 1, at: float = 1234.5678) -> StepTimeline:
    return StepTimeline(epoch, at, spans)


def test_step_timeline_of_all_machines_has_one_axis() -> None:
    found = picture((0.0, status(NODE, OTHER)), timeline=timeline(LEAD, WORKER))["timeline"]
    assert (found["step"], found["at"], found["tokens"], found["took_s"]) == (7, 1234.568, 1, 0.001)
    master, worker = found["machines"]
    assert (master["name"], worker["host"], worker["rank"]) == ("master", "ann", 1)
    micros = {
        one["name"]: {
            part: [(round(start * 1e6), round(end * 1e6)) for start, end in spans]
            for part, spans in one["spans"].items()
        }
        for one in found["machines"]
    }
    assert micros["master"] == {
        "compute": [(0, 50), (150, 300), (600, 800), (900, 1000)],
        "wait": [(300, 550)],
        "network": [(50, 150), (550, 600), (800, 900)],
        "disk": [],
    }
    assert micros["w-1"] == {
        "compute": [(150, 200), (300, 550), (600, 700)],
        "wait": [(0, 100), (700, 800), (900, 1000)],
        "network": [(100, 150), (550, 600), (800, 900)],
        "disk": [(200, 300)],
    }
    for machine in found["machines"]:
        for part, spans in machine["spans"].items():
            assert machine[f"{part}_s"] == pytest.approx(sum(end - start for start, end in spans), abs=2e-6)


#: In the first step each machine is once slower by 300 us, in the second one never; all-reduces take 100 us and 250 us.
TURNS = (
    StepSpans(1, 0, 7, 1, ((0, 100), (500, 900)), ((100, 500), (900, 1000)), ()),
    StepSpans(1, 1, 7, 1, ((0, 400), (500, 600)), ((400, 500), (600, 1000)), ()),
)
EVEN = tuple(
    StepSpans(1, rank, 8, 1, ((0, 250), (500, 750)), ((250, 500), (750, 1000)), ()) for rank in (0, 1)
)
BUSY = status(
    *(counted(node, 2.0, 10, compute_s=0.005, reduce_wait_s=0.005) for node in (NODE, OTHER)),
)


def test_step_time_breakdown_averages_recent_steps_of_epoch() -> None:
    one, waits = pictures(), []
    for epoch, at, spans in (
        (1, 10.0, TURNS),
        (1, 10.0, TURNS),
        (1, 12.0, EVEN),
        (1, 17.0, EVEN),
        (2, 18.0, TURNS),
    ):
        seen = replace(BUSY, epoch=epoch)
        shown = shown_step(timeline(*spans, epoch=epoch, at=at), seen.nodes, epoch)
        found: Any = one.of(seen, (), shown, at)["machines"]
        waits.append([machine["step"]["wait_s"] for machine in found])
    assert waits == [[0.0003] * 2, [0.0003] * 2, [0.00015] * 2, [0.0] * 2, [0.0003] * 2]
    assert found[0]["step"] == {"compute_s": 0.0005, "wait_s": 0.0003, "network_s": 0.0002, "disk_s": 0.0}
    for seen, step in ((BUSY, None), (status(NODE, OTHER), shown)):
        nothing: Any = one.of(seen, (), step, 19.0)["machines"]
        assert [machine["step"] for machine in nothing] == [None] * 2


micros = st.integers(0, (1 << 32) - 1)
some_spans = st.lists(st.tuples(micros, micros), max_size=6).map(tuple)


@given(
    st.lists(
        st.builds(StepSpans, *map(st.just, (1, 0, 7, 1)), some_spans, some_spans, some_spans),
        min_size=1,
        max_size=3,
    )
)
def test_step_spans_stay_within_the_step_and_disjoint(said: list[StepSpans]) -> None:
    nodes = [replace(NODE, rank=rank) for rank in range(len(said))]
    found = picture((0.0, status(*nodes)), timeline=timeline(*said))["timeline"]
    assert [one["rank"] for one in found["machines"]] == [node.rank for node in nodes]
    for machine in found["machines"]:
        for spans in machine["spans"].values():
            edges = [edge for span in spans for edge in span]
            assert edges == sorted(edges)
            assert all(0 <= edge <= found["took_s"] for edge in edges)
        holes, left = machine["spans"]["disk"], machine["spans"]["compute"]
        assert not any(low < end and start < high for low, high in holes for start, end in left)


def test_cluster_json_keeps_its_field_names() -> None:
    """The page, `tpiedge top` and monitoring programs read these names."""
    line = RequestLine("r-1", "answering", 3.0, 9, 2, 8, 1.5, "", 0.0, True, Reading(1, 9, 2.0, 4.0), "ann")
    node = replace(counted(OTHER, 1.0, 3), fetch_total_bytes=9, round_trip_s=0.001, link_bytes_per_s=1e8)
    seen = replace(status(NODE, node, replace(node, rank=2)), links=(WorkerLink(1, 2, 0.001),))
    spans = tuple(StepSpans(1, rank, 7, 1, ((0, 5),), (), ()) for rank in range(3))
    found: Any = pictures(line).of(seen, (), shown_step(StepTimeline(1, 0.0, spans), seen.nodes, 1), 0.0)
    machine, request, timeline = found["machines"][1], found["requests"][0], found["timeline"]
    for one, names in (
        (
            found,
            "object model next asleep ready reason epoch collective split_shows machines timeline waiting requests "
            "events totals",
        ),
        (found["model"], "name context_tokens"),
        (found["collective"], "token chunk why"),
        (
            found["totals"],
            "running queued tokens_per_s drafted accepted kv_pages kv_pages_used finished failed cancelled refused "
            "prompt_tokens cached_tokens brought_tokens tokens resumed travelled brought paused_s cut",
        ),
        (
            machine,
            "name host rank state why left_out_s silent_s heads ffn_tiles share threads speed_bytes_per_s memory disk "
            "fetching link links sent_bytes_per_s step",
        ),
        (machine["share"], "work heads ffn"),
        (
            machine["memory"],
            "budget_bytes planned_bytes pinned_bytes window_bytes kv_bytes kv_room_bytes kv_reserved_bytes "
            "program_bytes free_bytes peak_rss_bytes",
        ),
        (
            machine["disk"],
            "held_bytes read_bytes_per_s kv_read_bytes_per_s kv_written_bytes_per_s spare_ranges why",
        ),
        (machine["fetching"], "done_bytes total_bytes bytes_per_s"),
        (machine["link"], "round_trip_s bytes_per_s"),
        (machine["links"][0], "name host round_trip_s"),
        (machine["step"], "compute_s wait_s network_s disk_s"),
        (
            request,
            "id state age_s prompt_tokens tokens max_tokens tokens_per_s why paused_s attended reading sender",
        ),
        (request["reading"], "done_tokens of_tokens tokens_per_s left_s"),
        (request["sender"], "kind name"),
        (timeline, "step at tokens took_s machines"),
        (timeline["machines"][1], "name host rank compute_s wait_s network_s disk_s spans"),
    ):
        assert set(one) == set(names.split())
