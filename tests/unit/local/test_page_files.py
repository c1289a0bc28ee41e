"""The administrator hears of each machine's page files."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpiedge.kv.page_folder import KEPT, PageFolder, PageUsage
from tpiedge.local import service
from tpiedge.local.service import MachinePages, Service
from tpiedge.master.reconciler import NotServing
from tpiedge.master.status import NodeStatus
from tpiedge.wire.epochs import PageFiles

NOTHING = PageUsage()


class AskedMaster:
    """Two present machines, of which one answers, and one that is away."""

    def __init__(self) -> None:
        self.cleared: list[bool] = []
        self.turns = True  # whether its control thread does
        self.why = ""
        nodes = [self.node("master", ""), *(self.node(f"w-{name}", name) for name in ("ann", "bob", "eve"))]
        self.status = SimpleNamespace(nodes=nodes)

    def node(self, name: str, host: str) -> NodeStatus:
        state = "lost" if host == "eve" else "ready"
        return NodeStatus(
            name, 0, state, (0, 1), (0, 1), 1, 0, 0.0, 0, 0.0, host=host, keep_bytes=9, park_bytes=8
        )

    def ask_pages(self, *, clear: bool) -> Future[Any]:
        self.cleared.append(clear)
        asked: Future[Any] = Future()
        if self.turns:
            answered: Future[PageFiles] = Future()
            answered.set_result(PageFiles(0, 1, 2, 8192, 3, 4096, self.why))
            asked.set_result({"w-ann": answered, "w-bob": Future()})
        return asked


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Service, AskedMaster]:
    monkeypatch.setattr(service, "_PAGES_S", 0.01)
    monkeypatch.setattr(service, "_TURN_S", 0.01)
    (tmp_path / KEPT).mkdir()
    (tmp_path / KEPT / f"{'0' * 32}-1").write_bytes(bytes(4096))
    master, unused = AskedMaster(), cast(Any, None)
    return Service(cast(Any, master), unused, unused, unused, unused, PageFolder(tmp_path)), master


def test_machines_without_an_answer_are_named(made: tuple[Service, AskedMaster]) -> None:
    shown, master = made
    own = PageUsage(1, 4096)
    assert shown.page_files() == [
        MachinePages("master", "", own, NOTHING, 9, 8),
        MachinePages("w-ann", "ann", PageUsage(2, 8192), PageUsage(3, 4096), 9, 8),
        MachinePages("w-bob", "bob", NOTHING, NOTHING, 9, 8, "it did not answer within 0 s"),
        MachinePages("w-eve", "eve", NOTHING, NOTHING, 9, 8, "it is away"),
    ]
    assert master.cleared == [False]
    assert shown.page_files(clear=True)[0].kept == own
    assert shown.page_files()[0].kept == NOTHING
    assert master.cleared == [False, True, False]


def test_obstacles_of_a_machine_are_shown_in_one_clean_line(made: tuple[Service, AskedMaster]) -> None:
    shown, master = made
    master.why = "cannot\n\x1b[2J count"
    assert shown.page_files()[1].why == "cannot \\x1b[2J count"


def test_busy_master_is_no_answer_and_deletes_nothing(made: tuple[Service, AskedMaster]) -> None:
    shown, master = made
    master.turns = False
    with pytest.raises(NotServing, match="busy"):
        shown.page_files(clear=True)
    master.turns = True
    assert shown.page_files()[0].kept == PageUsage(1, 4096)
