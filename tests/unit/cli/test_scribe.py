import errno
import logging
import threading

import pytest

from tests.process.command import wait_for
from tpiedge.cli import scribe as scribes
from tpiedge.cli.scribe import Scribe, log_by_scribe

_WAIT_S = 10.0


class Screen:
    def __init__(self) -> None:
        self.text = ""
        self.moves = threading.Event()
        self.moves.set()
        self.writing = threading.Event()

    def write(self, text: str) -> None:
        self.writing.set()
        assert self.moves.wait(_WAIT_S)
        self.text += text


def test_a_screen_that_is_held_holds_nobody_up_and_what_is_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scribes, "_MOST_WAITING", 2)
    screen = Screen()
    screen.moves.clear()
    scribe = Scribe(screen.write)
    scribe.say("first")
    assert screen.writing.wait(_WAIT_S)
    for line in ("second", "third", *["too much"] * 15):
        scribe.say(line)
    screen.moves.set()
    wait_for(lambda: screen.text.endswith("out)\n"), _WAIT_S)
    assert screen.text.split() == ["first", "second", "third", "(15", "lines", "left", "out)"]
    screen.moves.clear()
    scribe.say("never seen")
    scribe.finish(0.01)
    assert "never" not in screen.text, "the end does not wait for ever for a screen that is held"
    screen.moves.set()
    scribe.finish(_WAIT_S)


def test_a_line_for_which_the_disk_has_no_room_is_the_only_one_that_is_lost() -> None:
    screen, full = Screen(), iter((False, True, False))

    def write(text: str) -> None:
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        screen.write(text)

    scribe = Scribe(write)
    for line in ("before", "meanwhile", "afterwards"):
        scribe.say(line)
    scribe.finish(_WAIT_S)
    assert screen.text == "before\nafterwards\n"


def test_log_records_go_by_the_scribe_as_they_would_have_been_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen, root = Screen(), logging.getLogger()
    monkeypatch.setattr(scribes.Scribe.__init__, "__defaults__", (screen.write,))
    usual = logging.StreamHandler()
    usual.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    monkeypatch.setattr(root, "handlers", [usual])
    with log_by_scribe() as scribe:
        logging.getLogger("tpiedge.test").warning("%s is lost", "node 2")
        logging.getLogger("tpiedge.test").warning("%d nodes", "three")  # ends no thread
        scribe.say("a line")
    assert root.handlers == [usual]
    assert screen.text == "WARNING node 2 is lost\na line\n"
    assert "%d nodes" in capsys.readouterr().err
