"""What a service says on standard error holds none of its threads up."""

import errno
import logging
import threading

import pytest

from tpiedge.cli import scribe as scribes
from tpiedge.cli.scribe import Scribe, log_by_scribe

_WAIT_S = 10.0


class Screen:
    """A terminal that may be held."""

    def __init__(self) -> None:
        self.text = ""
        self.moves = threading.Event()
        self.moves.set()
        self.writing = threading.Event()

    def write(self, text: str) -> None:
        self.writing.set()
        assert self.moves.wait(_WAIT_S)
        self.text += text


def test_a_screen_that_is_held_holds_nobody_up_and_what_is_left_out_is_counted_where_it_is_missing(
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
    monkeypatch.setattr(scribes, "_MOST_WAITING", 10)
    scribe.say("later")
    screen.moves.set()
    scribe.finish(_WAIT_S)
    assert screen.text.splitlines() == ["first", "second", "third", "(15 lines left out)", "later"]


def test_the_end_does_not_wait_for_ever_for_a_screen_that_is_held() -> None:
    screen = Screen()
    screen.moves.clear()
    scribe = Scribe(screen.write)
    scribe.say("never seen")
    scribe.finish(0.01)
    assert screen.text == ""
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


def test_a_record_that_cannot_be_formatted_does_not_end_the_thread_that_logs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    monkeypatch.setattr(scribes.Scribe.__init__, "__defaults__", (screen.write,))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with log_by_scribe():
        logging.getLogger("tpiedge.test").info("hardly of interest")
        logging.getLogger("tpiedge.test").warning("%d nodes", "three")
        logging.getLogger("tpiedge.test").warning("node 2 is lost")
    assert screen.text == "node 2 is lost\n"
    assert "%d nodes" in capsys.readouterr().err


def test_log_records_go_by_the_scribe_as_they_would_have_been_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, root = Screen(), logging.getLogger()
    monkeypatch.setattr(scribes.Scribe.__init__, "__defaults__", (screen.write,))
    usual = logging.StreamHandler()
    usual.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    monkeypatch.setattr(root, "handlers", [usual])
    with log_by_scribe() as scribe:
        logging.getLogger("tpiedge.test").warning("%s is lost", "node 2")
        scribe.say("a line")
    assert root.handlers == [usual]
    assert screen.text == "WARNING node 2 is lost\na line\n"
