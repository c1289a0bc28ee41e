import errno
import logging
import threading

import pytest

from tests.process.command import wait_for
from tpiedge.cli import log_writer
from tpiedge.cli.log_writer import LogWriter, log_in_thread

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


def test_stalled_output_drops_and_counts_log_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "_MOST_WAITING", 2)
    screen = Screen()
    screen.moves.clear()
    writer = LogWriter(screen.write)
    writer.say("first")
    assert screen.writing.wait(_WAIT_S)
    for line in ("second", "third", *["too much"] * 15):
        writer.say(line)
    screen.moves.set()
    wait_for(lambda: screen.text.endswith("out)\n"), _WAIT_S)
    assert screen.text.split() == ["first", "second", "third", "(15", "lines", "left", "out)"]
    screen.moves.clear()
    writer.say("never seen")
    writer.finish(0.01)
    assert "never" not in screen.text, "the end does not wait for ever for a screen that is held"
    screen.moves.set()
    writer.finish(_WAIT_S)


def test_full_disk_loses_only_the_line_being_written() -> None:
    screen, full = Screen(), iter((False, True, False))

    def write(text: str) -> None:
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        screen.write(text)

    writer = LogWriter(write)
    for line in ("before", "meanwhile", "afterwards"):
        writer.say(line)
    writer.finish(_WAIT_S)
    assert screen.text == "before\nafterwards\n"


def test_the_writer_formats_log_records_like_the_usual_handler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen, root = Screen(), logging.getLogger()
    monkeypatch.setattr(log_writer.LogWriter.__init__, "__defaults__", (screen.write,))
    usual = logging.StreamHandler()
    usual.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    monkeypatch.setattr(root, "handlers", [usual])
    with log_in_thread() as writer:
        logging.getLogger("tpiedge.test").warning("%s is lost", "node 2")
        logging.getLogger("tpiedge.test").warning("%d nodes", "three")  # ends no thread
        writer.say("a line")
    assert root.handlers == [usual]
    assert screen.text == "WARNING node 2 is lost\na line\n"
    assert "%d nodes" in capsys.readouterr().err
