"""What a run of nemesis comes to, and its faults, without a cluster."""

import ast
from pathlib import Path

from tools.nemesis import figures, nemesis, stage
from tools.nemesis.readers import Found, Pause
from tpiedge.master.pauses import PLANNED

FOLDER = Path(nemesis.__file__).parent


def test_every_kind_has_faults_with_names_of_their_own() -> None:
    assert tuple(nemesis.FAULTS) == stage.KINDS
    names = [name for faults in nemesis.FAULTS.values() for name in faults]
    assert len(names) == len(set(names))


def test_pauses_count_from_what_changed_last_before_them() -> None:
    changes = [
        (100.0, "nothing"),
        (110.0, "node killed"),
        (105.0, "link cut"),
    ]  # as they ended, not as they began
    cut = [Pause(106.0, 105.0 + seconds, "node 1 was lost") for seconds in range(1, 21)]
    planned = Pause(117.0, 120.5, f"the answer pauses: {PLANNED}")
    found = Found(pauses=[*cut, Pause(110.25, 110.5, "node 2 was lost"), planned])
    record = figures.pauses(found, changes, reading_s=0.5, prefill_s=1.0)
    assert (record["bound_s"], record["planned_bound_s"]) == (5.0, 3.0)
    assert record["seconds_by_kind"] == {
        "link cut": {"pauses": 20, "median": 10.5, "p95": 19.0, "max": 20.0, "beyond": 15},
        "node killed": {"pauses": 1, "median": 0.5, "p95": 0.5, "max": 0.5, "beyond": 0},
        PLANNED: {"pauses": 1, "median": 3.5, "p95": 3.5, "max": 3.5, "beyond": 1},
    }
    assert record["seconds_to_the_next_token"]["pauses"] == 21
    assert record["changes"] == ["0.0 s nothing", "5.0 s link cut", "10.0 s node killed"]
    assert record["pauses"][-2] == "10.0 s node killed, 0.5 s: node 2 was lost"


def test_without_a_pause() -> None:
    assert figures.pauses(Found(), [(0.0, "nothing")], 0.0, 0.0)["seconds_to_the_next_token"] is None


def test_the_floor_plan_names_every_module() -> None:
    plan = ast.get_docstring(ast.parse((FOLDER / "__init__.py").read_text())) or ""
    for path in FOLDER.glob("[a-z]*.py"):
        assert f"`{path.stem}`" in plan
