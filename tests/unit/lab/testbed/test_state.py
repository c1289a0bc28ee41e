import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed import state as module
from tpiedge.lab.testbed.description import load_scenario
from tpiedge.lab.testbed.state import Owner, TestbedState, folder_of, locked, names, read_state

GONE = replace(Owner.own(), pid=2**30)
LATER = replace(Owner.own(), started=1.0)
BEFORE = replace(Owner.own(), boot="before")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tpiedge" / "testbeds"
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return root


def made(**changes: object) -> TestbedState:
    return replace(TestbedState("x", load_scenario("pair").text, maker=Owner.own()), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "{}", '{"maker": 1}', '{"maker": {"pid": 1}}', "null"]
)
def test_unreadable_state_is_ignored_but_listed(content: str | None) -> None:
    made().write()
    path = folder_of("x") / "state.json"
    path.unlink() if content is None else path.write_text(content)
    assert read_state("x") is None
    assert names() == ["x"]


@pytest.mark.parametrize(
    ("changes", "abandoned"),
    [
        pytest.param({}, False, id="being made"),
        pytest.param({"maker": GONE}, True, id="maker gone"),
        pytest.param({"maker": GONE, "ready": True}, False, id="up"),
        pytest.param({"maker": GONE, "ready": True, "owner": GONE}, True, id="owner gone"),
        pytest.param(
            {"maker": GONE, "ready": True, "owner": LATER}, True, id="another has the owner's number"
        ),
        pytest.param({"maker": GONE, "ready": True, "owner": BEFORE}, True, id="owner before a restart"),
        pytest.param({"ready": True, "boot": "before"}, True, id="up before a restart"),
        pytest.param({"boot": "before"}, True, id="made before a restart"),
    ],
)
def test_testbed_is_abandoned_when_its_owner_is_gone(changes: dict[str, object], abandoned: bool) -> None:
    assert made(**changes).abandoned is abandoned


def test_testbed_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="needs Linux"), locked():
        pytest.fail("no namespaces there")


def test_testbed_lock_is_exclusive() -> None:
    with locked(), pytest.raises(ResourceError, match="another command works on a testbed"), locked(0.1):
        pytest.fail("two at a time")
    with locked():
        pass
