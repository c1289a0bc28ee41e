import os
import pty
import termios
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.cli import nodes, top
from tpiedge.cli.listing import table_lines
from tpiedge.errors import UserError

LIMIT_S = 60.0
NOON = datetime(2026, 3, 5, 12, 0, 7)
MACHINE: dict[str, Any] = {
    **{"name": "w-12", "host": "attic", "rank": 1, "state": "serving", "why": "22 GB/s of weights"},
    **{"left_out_s": 0, "silent_s": 0, "share": {"heads": 0.333, "ffn": 0.5}, "fetching": None, "links": []},
    "memory": {"budget_bytes": 2_000_000_000, "planned_bytes": 500_000_000},
    "disk": {
        **{"held_bytes": 2_700_000, "read_bytes_per_s": None, "why": ""},
        **{"kv_read_bytes_per_s": None, "kv_written_bytes_per_s": None},
    },
    "link": {"round_trip_s": 0.0014, "bytes_per_s": 30_000_000},
    "step": {"compute_s": 0.006, "wait_s": 0.002, "network_s": 0.002, "disk_s": 0.0},
}
SPARE = MACHINE | {
    **{"name": "w-34", "host": "cellar\x1b[2J", "rank": None, "state": "spare", "why": "too slow"},
    **{"link": None, "step": None},
}
REQUEST = {
    **{"id": "cmpl-1", "sender": {"kind": "key", "name": "phone"}, "state": "paused", "age_s": 75},
    **{"prompt_tokens": 12, "tokens": 3, "max_tokens": 90, "tokens_per_s": 0.51, "reading": None},
    **{"why": "attic was lost", "paused_s": 2},
}
EVENT = {"at": NOON.timestamp(), "kind": "lost", "machine": "attic", "detail": "silent for 1.6 s"}
TOTALS = {
    **{"running": 1, "queued": 2, "tokens_per_s": 3.25, "drafted": 10, "accepted": 4},
    **{"kv_pages": 16, "kv_pages_used": 5},
}
SPANS = {
    **{"compute": [[0.0, 0.005], [0.01, 0.0149]], "wait": [[0.0149, 0.0199]]},
    **{"network": [[0.005, 0.007]], "disk": []},
}
TIMELINE = {
    **{"step": 48, "at": NOON.timestamp(), "tokens": 1, "took_s": 0.02},
    "machines": [{"name": "w-12", "host": "attic", "rank": 1, "spans": SPANS}],
}
PICTURE = {
    **{"model": {"name": "demo"}, "ready": True, "asleep": False, "reason": "", "totals": TOTALS},
    "timeline": TIMELINE,
    **{"machines": [MACHINE, SPARE], "requests": [REQUEST], "events": [EVENT]},
    "waiting": [{"name": "laptop", "address": "192.0.2.7"}],
}


def test_summary_shows_the_cluster_in_one_line() -> None:
    assert top.summary(PICTURE) == (
        "demo: ready; 1 running, 2 queued; 3.2 tokens/s; 40% of 10 drafts accepted; KV cache 5 of 16 pages"
    )
    starting = PICTURE | {
        "ready": False,
        "reason": "loading the weights",
        "totals": TOTALS | {"tokens_per_s": None, "drafted": 0, "kv_pages": 0},
    }
    assert top.summary(starting) == "demo: not ready: loading the weights; 1 running, 2 queued"
    unloaded = starting | {"asleep": True, "reason": "the next request loads the weights into memory"}
    assert top.summary(unloaded).startswith("demo: asleep: the next request loads the weights into memory; ")
    assert top.summary(PICTURE | {"reason": "phi is next"}).startswith("demo: ready: phi is next; ")


def test_machine_rows_show_serving_and_spare_machines() -> None:
    assert top.machine_row(MACHINE) == (
        "1", "serving", "33%", "50%", "0.5/2.0 GB", "1.4 ms, 30.0 MB/s", "2.7 MB",
        "10 ms", "60%", "20%", "20%", "0%",
    )  # fmt: skip
    assert top.machine_row(SPARE) == ("-", "spare", *"----", "2.7 MB", *"-----")
    fetching = MACHINE | {"fetching": {"done_bytes": 1, "total_bytes": 4}}
    assert top.machine_row(fetching)[1] == "serving, fetched 25%"
    assert top.machine_row(MACHINE | {"silent_s": 4})[1] == "serving, silent for 4.0 s"


def test_request_rows_event_lines_and_notes_are_formatted() -> None:
    assert top.request_row(REQUEST) == ("phone", "paused", "1 min 15 s", "12", "3 of 90", "0.5", "cmpl-1")
    assert top.request_row(REQUEST | {"age_s": None, "tokens_per_s": 0.0})[2::3] == ("-", "-")
    assert list(top.notes(PICTURE, top.names_of(PICTURE["machines"]))) == [
        "cellar [2J: too slow",
        "cmpl-1 paused for 2.0 s: attic was lost",
        "laptop (192.0.2.7) waits to join: tpiedge nodes approve CODE, with the code on its screen",
    ]
    moves = MACHINE | {"disk": {"kv_read_bytes_per_s": 1_500_000_000, "kv_written_bytes_per_s": 0}}
    assert list(
        top.notes(PICTURE | {"machines": [moves], "requests": [], "waiting": []}, {"w-12": "attic"})
    ) == ["attic: KV pages 1.5 GB/s from disk, 0 B/s to disk"]
    assert top.event_line(EVENT, NOON.date()) == "12:00:07 attic was lost: silent for 1.6 s"
    assert top.event_line(EVENT, date(2026, 3, 6)) == "2026-03-05 12:00:07 attic was lost: silent for 1.6 s"
    plain = EVENT | {"kind": "serving", "machine": "", "detail": ""}
    assert top.event_line(plain, NOON.date()) == "12:00:07 serving"


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        ({"kind": "key", "name": ""}, "unnamed key"),
        ({"kind": "former key", "name": ""}, "removed key"),
        ({"kind": "address", "name": "192.0.2.7"}, "192.0.2.7"),
        (None, "-"),
    ],
)
def test_request_row_shows_the_sender(sender: dict[str, str] | None, said: str) -> None:
    assert top.request_row(REQUEST | {"sender": sender})[0] == said


def test_request_row_shows_prompt_progress() -> None:
    reading = {"done_tokens": 300, "of_tokens": 900, "tokens_per_s": 0.0, "left_s": None}
    assert top.request_row(REQUEST | {"reading": reading})[3] == "300 of 900"
    assert top.request_row(REQUEST | {"reading": reading | {"left_s": 4}})[3] == "300 of 900, 4.0 s left"


def test_step_line_cells_show_the_longest_activity() -> None:
    (machine,) = TIMELINE["machines"]
    assert top.step_line(machine, 0.02, 8) == "##~ ##.."
    assert top.step_line(machine, 0.02, 5) == "#~##."
    lines = list(top.picture_lines(PICTURE, NOON.date()))
    at = lines.index("step 48 at 12:00:07: 20 ms (# compute, . wait, ~ network, d disk)")
    assert lines[at + 1].startswith("attic  ####")
    assert len(lines[at + 1].removeprefix("attic  ")) == 60
    assert not [
        line for line in top.picture_lines(PICTURE | {"timeline": None}, NOON.date()) if "step 48" in line
    ]


def linked(hosts: list[str], unknown: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """Ranks 1, 2 and so on; a round trip takes as many ms as the lower rank has tens and the higher one ones."""
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


@given(st.integers(0, 12), st.integers(1, 9))
def test_link_table_shows_every_round_trip_once(workers: int, columns: int) -> None:
    names = [f"h{rank}" for rank in range(1, workers + 1)]
    found, header = [], []
    for line in top.link_lines(linked(names, unknown=(1, 3)), columns):
        words = line.split()
        if line.startswith("between workers"):
            header = [int(word) for word in words[2:]]
            assert 1 <= len(header) <= columns
        elif not line.startswith("-"):
            trips = [word for word in words[2:] if word != "ms"]
            found += [(low, int(words[0]), trip) for low, trip in zip(header, trips, strict=False)]
    assert sorted(found) == [
        (low, high, "-" if (low, high) == (1, 3) else str(10 * low + high))
        for low in range(1, workers)
        for high in range(low + 1, workers + 1)
    ]


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_top_and_nodes_show_every_cell_whole(columns: int) -> None:
    """Machines have long names and states, and requests the ids of real ones."""
    request = REQUEST | {"id": f"chatcmpl-{'0123456789ab' * 2}", "why": "it is late " * 20}
    picture = linked(["raspberrypi-attic", "dell-1", "raspberrypi-4"]) | {"requests": [request]}
    picture["machines"][1] |= {"state": "draining", "fetching": {"done_bytes": 1, "total_bytes": 4}}
    lines = top.screen_lines(picture, "no master answers " * 9, (columns, 200))
    cells = {cell for one in picture["machines"] for cell in top.machine_row(one)}
    node = {"name": "w-c31e958fc19a9ef0", "rank": 12, "state": "left out", "attention": (100, 127)}
    node |= {"ffn": (100, 127), "threads": 16, "memory_bytes": 16e9, "speed": 123e9, "weight_bytes": 123e6}
    row = ("raspberrypi-attic", *nodes._row(node | {"disk_bytes": 123e6, "last_seen_s": 55.5}))
    lines += table_lines(nodes._HEADER, [row], columns)
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "…" not in text
    assert [
        cell for cell in (*cells, *top.request_row(request), *nodes._HEADER, *row) if cell not in text
    ] == []
    assert " ".join(text.split()).count("it is late") == 20


def test_machines_are_called_by_their_hosts_with_names_only_where_several_share_one() -> None:
    machines = [{"name": "master", "host": ""}, {"name": "w-1", "host": "pi"}, {"name": "w-2", "host": "pi"}]
    called = {"master": "master", "w-1": "pi (w-1)", "w-2": "pi (w-2)", "w-3": "dell"}
    assert top.names_of([*machines, {"name": "w-3", "host": "dell"}]) == called


@pytest.mark.parametrize(("width", "height"), [(80, 3), (80, 10), (120, 24), (40, 200)])
def test_top_output_fits_the_screen(width: int, height: int) -> None:
    lines = top.screen_lines(linked(["raspberrypi-in-the-cellar"] * 9), "no master answers", (width, height))
    assert len(lines) < height
    assert max(map(len, lines)) < width
    assert lines[0] == "no master answers"
    assert not any("\x1b" in line for line in lines)


def test_top_refreshes_until_q_and_restores_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A master that cannot be reached is named above the latest picture, and is asked again."""
    keyboard, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    pictures = iter([("x", PICTURE), ("x", None), ("q", PICTURE)])

    def look(_state: object) -> dict[str, Any]:
        key, picture = next(pictures)
        os.write(keyboard, key.encode())
        if picture is None:
            raise UserError("no master runs here")
        return picture

    monkeypatch.setattr(top, "_look", look)
    monkeypatch.setattr(top, "_LOOK_S", LIMIT_S)  # each look comes with a key
    with open(terminal) as typed:
        monkeypatch.setattr("sys.stdin", typed)
        top._watch(None)
        assert termios.tcgetattr(terminal) == before
    os.close(keyboard)
    first, second, third = capsys.readouterr().out.split("q quits")[:3]
    assert "no master runs here" not in first + third
    assert "no master runs here" in second
    assert all("attic" in screen for screen in (first, second))
