"""What `tpiedge top` makes of the master's picture."""

from datetime import date, datetime
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.screen import Screen

from tpiedge.cli.cluster_words import (
    bar_cells,
    event_line,
    link_tables,
    machine_row,
    memory_parts,
    notes,
    request_row,
    step_parts,
    summary,
    timeline_cells,
    timeline_lines,
)
from tpiedge.cli.top import screen_of

NOON = datetime(2026, 3, 5, 12, 0, 7)
MEMORY = {
    "budget_bytes": 2_000_000_000,
    "planned_bytes": 500_000_000,
    "pinned_bytes": 80_000_000,
    "window_bytes": 10_000_000,
    "kv_bytes": 0,
    "kv_room_bytes": 10_000_000,
    "program_bytes": 400_000_000,
    "free_bytes": 1_500_000_000,
}
MACHINE: dict[str, Any] = {
    "name": "w-12",
    "host": "attic",
    "rank": 1,
    "state": "serving",
    "why": "22 GB/s of weights",
    "left_out_s": 0,
    "silent_s": 0,
    "share": {"heads": 0.333, "ffn": 0.5},
    "memory": MEMORY,
    "disk": {"held_bytes": 2_700_000, "read_bytes_per_s": None, "why": ""},
    "fetching": None,
    "link": {"round_trip_s": 0.0014, "bytes_per_s": 30_000_000},
    "links": [],
    "step": {"compute_s": 0.006, "wait_s": 0.002, "network_s": 0.002, "disk_s": 0.0},
}
SPARE = MACHINE | {
    "name": "w-34",
    "host": "cellar\x1b[2J",
    "rank": None,
    "state": "spare",
    "why": "too slow",
    "link": None,
    "links": [],
    "step": None,
}
REQUEST = {
    "id": "cmpl-1",
    "sender": {"kind": "key", "name": "phone"},
    "state": "paused",
    "age_s": 75,
    "prompt_tokens": 12,
    "tokens": 3,
    "max_tokens": 90,
    "tokens_per_s": 0.51,
    "why": "attic was lost",
    "paused_s": 2,
    "reading": None,
}
EVENT = {"at": NOON.timestamp(), "kind": "lost", "machine": "attic", "detail": "silent for 1.6 s"}
TOTALS = {
    "running": 1,
    "queued": 2,
    "tokens_per_s": 3.25,
    "drafted": 10,
    "accepted": 4,
    "kv_pages": 16,
    "kv_pages_used": 5,
}
TIMELINE = {
    "step": 48,
    "at": NOON.timestamp(),
    "tokens": 1,
    "took_s": 0.02,
    "machines": [
        {
            "name": "w-12",
            "host": "attic",
            "rank": 1,
            "spans": {
                "compute": [[0.0, 0.005], [0.01, 0.0149]],
                "wait": [[0.0149, 0.0199]],
                "network": [[0.005, 0.007]],
                "disk": [],
            },
        }
    ],
}
PICTURE = {
    "model": {"name": "demo"},
    "ready": True,
    "reason": "",
    "machines": [MACHINE, SPARE],
    "timeline": TIMELINE,
    "waiting": [{"name": "laptop", "address": "192.0.2.7"}],
    "requests": [REQUEST],
    "events": [EVENT],
    "totals": TOTALS,
}


def test_the_cluster_in_a_line() -> None:
    assert summary(PICTURE) == (
        "demo: ready; 1 running, 2 queued; 3.2 tokens/s; 40% of 10 guesses came true; KV cache 5 of 16 pages"
    )
    starting = PICTURE | {
        "ready": False,
        "reason": "loading the weights",
        "totals": TOTALS | {"tokens_per_s": None, "drafted": 0, "kv_pages": 0},
    }
    assert summary(starting) == "demo: not ready: loading the weights; 1 running, 2 queued"


def test_a_machine_and_one_without_a_part() -> None:
    assert machine_row(MACHINE) == (
        "w-12 (attic)", "1", "serving", "33%", "50%", "500.0 MB of 2.0 GB",
        "10 ms: compute 60%, wait 20%, network 20%", "2.7 MB", "1.4 ms, 30.0 MB/s",
    )  # fmt: skip
    assert machine_row(SPARE) == (
        "w-34 (cellar [2J)", "-", "spare", "-", "-", "-", "-", "2.7 MB", "-"
    )  # fmt: skip
    fetching = MACHINE | {"fetching": {"done_bytes": 1, "total_bytes": 4}}
    assert machine_row(fetching)[2] == "serving, fetched 25%"
    assert machine_row(MACHINE | {"silent_s": 4})[2] == "serving, silent for 4.0 s"


def test_what_parts_there_are() -> None:
    assert [part for part, _ in memory_parts(MACHINE)] == ["pinned", "window", "kv_room", "program", "free"]
    assert sum(size for _, size in memory_parts(MACHINE)) == MEMORY["budget_bytes"]
    assert step_parts(SPARE) == ()


def test_requests_events_and_what_is_asked_of_the_user() -> None:
    assert request_row(REQUEST) == ("cmpl-1", "phone", "paused", "1 min 15 s", "12", "3 of 90", "0.5")
    assert request_row(REQUEST | {"age_s": None, "tokens_per_s": 0.0})[3::3] == ("-", "-")
    assert notes(PICTURE) == [
        "w-34 (cellar [2J): too slow",
        "cmpl-1 pauses for 2.0 s: attic was lost",
        "laptop (192.0.2.7) waits to join: type the code that it shows: tpiedge nodes approve CODE",
    ]
    assert event_line(EVENT, NOON.date()) == "12:00:07 attic was lost: silent for 1.6 s"
    assert event_line(EVENT, date(2026, 3, 6)) == "2026-03-05 12:00:07 attic was lost: silent for 1.6 s"
    plain = EVENT | {"kind": "serving", "machine": "", "detail": ""}
    assert event_line(plain, NOON.date()) == "12:00:07 the plan serves"


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        ({"kind": "key", "name": ""}, "a key without a name"),
        ({"kind": "former key", "name": ""}, "a key that is gone"),
        ({"kind": "address", "name": "192.0.2.7"}, "192.0.2.7"),
        (None, "-"),
    ],
)
def test_who_sent_a_request(sender: dict[str, str] | None, said: str) -> None:
    assert request_row(REQUEST | {"sender": sender})[1] == said


def test_how_far_a_prompt_is_read() -> None:
    reading = {"done_tokens": 300, "of_tokens": 900, "tokens_per_s": 0.0, "left_s": None}
    assert request_row(REQUEST | {"reading": reading})[4] == "300 of 900"
    assert request_row(REQUEST | {"reading": reading | {"left_s": 4}})[4] == "300 of 900, 4.0 s left"


def test_a_cell_of_a_step_shows_what_took_most_of_it() -> None:
    (machine,) = TIMELINE["machines"]
    assert timeline_cells(machine, 0.02, 8) == [
        "compute", "compute", "network", "", "compute", "compute", "wait", "wait",
    ]  # fmt: skip
    title, line = timeline_lines(PICTURE)
    assert title == "step 48 at 12:00:07: 20 ms (# compute, . wait, ~ network, d disk)"
    assert line.startswith("w-12 (attic)  ####")
    assert len(line.removeprefix("w-12 (attic)  ")) == 72
    assert timeline_lines(PICTURE | {"timeline": None}) == []


def linked(hosts: list[str], unknown: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """A picture of a master and workers on these hosts, of ranks 1, 2 and so on. A round trip between two of them takes
    as many ms as the lower rank has tens and the higher one ones; one is unknown."""
    ranks = range(1, len(hosts) + 1)
    workers = [
        MACHINE
        | {
            "name": f"w-{rank}",
            "host": hosts[rank - 1],
            "rank": rank,
            "links": [
                {"name": f"w-{other}", "round_trip_s": (10 * min(rank, other) + max(rank, other)) / 1000}
                for other in ranks
                if other != rank and {rank, other} != set(unknown)
            ],
        }
        for rank in ranks
    ]
    master = MACHINE | {"name": "master", "host": "", "rank": 0, "link": None}
    return PICTURE | {"machines": [master, *reversed(workers), SPARE]}


def test_round_trips_between_workers_stand_below_and_beside_their_ranks() -> None:
    assert link_tables(PICTURE, 7) == []
    assert link_tables(linked(["attic"]), 7) == []
    assert link_tables(linked(["attic", "cellar\x1b[2J"]), 7) == [
        [("between workers", "1"), ("1 attic", ""), ("2 cellar [2J", "12 ms")]
    ]
    assert link_tables(linked(["ann", "", "cat"], unknown=(1, 3)), 7) == [
        [
            ("between workers", "1", "2"),
            ("1 ann", "", ""),
            ("2 w-2", "12 ms", ""),
            ("3 cat", "-", "23 ms"),
        ]
    ]


@given(st.integers(0, 12), st.integers(1, 9))
def test_every_round_trip_stands_once_in_tables_of_so_many_columns(workers: int, columns: int) -> None:
    tables = link_tables(linked([f"h{rank}" for rank in range(1, workers + 1)]), columns)
    found = []
    for header, *rows in tables:
        assert 2 <= len(header) <= columns + 1
        for name, *trips in rows:
            rank = int(name.split()[0])
            found += [(int(other), rank, trip) for other, trip in zip(header[1:], trips, strict=True) if trip]
    assert sorted(found) == [
        (low, high, f"{10 * low + high} ms")
        for low in range(1, workers)
        for high in range(low + 1, workers + 1)
    ]


@given(
    st.lists(st.floats(0, 1e12), min_size=1, max_size=6).map(
        lambda sizes: [(str(number), size) for number, size in enumerate(sizes)]
    ),
    st.integers(12, 40),
)
def test_bars_have_all_their_cells_and_every_part(parts: list[tuple[str, float]], width: int) -> None:
    cells = bar_cells(parts, width)
    assert [part for part, _ in cells] == [part for part, size in parts if size > 0]
    if cells:
        assert sum(count for _, count in cells) == width
        assert min(count for _, count in cells) >= 1


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("workers", [0, 1, 2, 7, 16])
def test_the_screen_has_every_round_trip_within_its_width(workers: int, width: int) -> None:
    picture = linked([f"raspberrypi-in-the-cellar-{rank}" for rank in range(1, workers + 1)])
    console = Console(width=width, file=StringIO())
    with console.capture() as captured:
        console.print(screen_of(picture, NOON.date(), width))
    lines = captured.get().splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("between workers")]
    assert len(starts) == (workers > 1) + (workers > 8 and width == 80) + (workers > 12)
    if starts:
        shown = " ".join(lines[starts[0] :]).split()
        assert shown.count("ms") == workers * (workers - 1) / 2
        for low in range(1, workers):
            for high in range(low + 1, workers + 1):
                assert str(10 * low + high) in shown
        assert "1 raspberrypi-i…" in lines[starts[0] + 1]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("height", [3, 10, 24, 200])
def test_a_low_screen_says_how_to_leave_it(height: int) -> None:
    console = Console(width=80, height=height, file=StringIO())
    with console.capture() as captured:
        console.print(Screen(screen_of(PICTURE, NOON.date(), 80, height=height)))
    lines = captured.get().rstrip().splitlines()
    assert len(lines) <= height
    assert lines[-1].rstrip() == "q ends"
    assert ("step 48" in captured.get()) == (height > 20)


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_has_all_of_it_within_its_width(width: int) -> None:
    console = Console(width=width, file=StringIO())
    with console.capture() as captured:
        console.print(screen_of(PICTURE, NOON.date(), width, "no master answers"))
    text = captured.get()
    for words in (
        "attic",
        "w-12",
        "serving",
        "33% heads",
        "0.5/2.0 GB",
        "10 ms",
        "30.0 MB/s",
        "no master answers",
        "step 48 at 12:00:07: 20 ms",
    ):
        assert words in text
    assert ("2.7 MB" in text) == (width == 120)
    assert "\x1b[2J" not in text
    assert max(map(len, text.splitlines())) <= width
