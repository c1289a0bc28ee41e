from dataclasses import asdict, replace
from typing import Any

import pytest

from tpiedge.cli.master_lines import Callers, Changes, _summary
from tpiedge.cli.nodes import _print
from tpiedge.joining.pairing import Pending
from tpiedge.master.status import ClusterStatus, NodeStatus

NODES = tuple(
    NodeStatus(name, rank, "ready", (0, 1), (0, 1), 2, 0, 0.0, 0, 0.1)
    for rank, name in enumerate(("master", "ann"))
)
STATUS = ClusterStatus(True, "", NODES, 0, 0, 3, collective="mesh", bulk_collective="two-shot")


def test_status_line_names_the_all_reduce() -> None:
    assert _summary(STATUS) == "ready: 2 nodes (master, ann), all-reduce mesh (prompts: two-shot)"
    assert _summary(replace(STATUS, bulk_collective="mesh")).endswith("(master, ann), all-reduce mesh")
    alone = replace(STATUS, collective="", bulk_collective="")
    assert _summary(alone) == "ready: 2 nodes (master, ann)"
    assert _summary(replace(alone, model="phi")) == "ready: 2 nodes (master, ann), model phi"
    assert _summary(replace(alone, ready=False, asleep=True, reason="why")) == "asleep: why"


STAR = {"collective": "star", "bulk_collective": "star"}


def beside(**changes: object) -> ClusterStatus:
    spare = NodeStatus("w-9", None, "spare", (0, 0), (0, 0), 2, 0, 0.0, 0, 0.1, "a reason", "bob")
    return replace(STATUS, nodes=(*NODES, replace(spare, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"spare": "slower"}, "bob is a spare: a reason"),
        ({"spare": "too small", "state": "lost"}, "bob cannot be used: a reason"),
        ({"spare": "excluded", "state": "left out"}, "bob is left out: a reason"),
        ({"spare": "no room", "why": "its\n\x1b[2J disk"}, "bob cannot be used now: its \\x1b[2J disk"),
    ],
)
def test_reason_for_an_unused_machine_is_printed_once(changes: dict[str, object], line: str) -> None:
    said: list[str] = []
    show = Changes(said.append)
    for status in (STATUS, beside(), beside(**changes), beside(**{**changes, "why": "another number"})):
        show(status)
    assert said == [_summary(STATUS), line]
    show(beside())
    show(beside(**changes))
    assert said[2:] == [line], "it had a part, and has none again"


@pytest.mark.parametrize(
    ("changes", "shown", "missing"),
    [
        (
            {},
            "all-reduce: mesh (prompts: two-shot)\nanswers: bit-identical for any shares",
            "?",
        ),
        (STAR | {"collective_why": "nodes 1 and 2 \x07"}, "all-reduce: star: nodes 1 and 2 ", "\x07"),
        ({"split_shows": "bf16 \x07"}, "other shares (bf16 ", "\x07"),
        ({"ready": False}, "not ready", "answers:"),
        ({"ready": False, "asleep": True, "reason": "why"}, "asleep: why", "not ready"),
        ({"model": "phi\x07", "reason": "other is next"}, "phi", "\x07"),
        ({"collective": "", "bulk_collective": ""}, "ready", "all-reduce"),  # a node alone
    ],
)
def test_nodes_shows_the_all_reduce_and_split_dependence(
    changes: dict[str, Any], shown: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print(asdict(replace(STATUS, **changes)) | {"pending": []}, 0)
    said = capsys.readouterr().out
    assert shown in said
    assert missing == "?" or missing not in said


def test_worker_waiting_for_approval_is_announced_once() -> None:
    told: list[str] = []
    callers = Callers(told.append)
    attic, pi = Pending("w-1", "attic", "10.0.0.5", 0.0), Pending("w-2", "pi\x1b[2J", "10.0.0.6", 0.0)
    for now in (0.0, 0.1, 20.0):
        callers([attic], now)
    assert told == [
        "10.0.0.5 waits to join and calls itself 'attic': run 'tpiedge nodes approve CODE' with the code on its "
        "screen"
    ]
    callers([attic, pi], 21.0)
    callers([], 22.0)
    callers([attic], 900.0)  # again
    assert [line.split(" ")[0] for line in told] == ["10.0.0.5", "10.0.0.6", "10.0.0.5"]
    assert "\x1b" not in told[1]
