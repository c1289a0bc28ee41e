"""The chat on a real terminal: what is typed, pasted, called back and stopped."""

import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.process.command import COMMAND, end_terminal

# A terminal that answers no questions about its cursor is not waited for.
_ENVIRONMENT = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
_PASTE = "\x1b[200~{}\x1b[201~"
_UP = "\x1b[A"
_COLUMNS = 60
_LINES = 40
_LIMIT_S = 60


class Terminal:
    """A terminal of 60 columns in which `tpiedge run` talks to the model."""

    def __init__(self, model: Path, folder: Path) -> None:
        flags = ["--threads", "1", "--temperature", "0", "--max-tokens", "6", "--ignore-eos"]
        self.folder = folder
        self.talk = "talk.json"
        self._begin = 0
        self.child = pexpect.spawn(
            COMMAND,
            ["run", "--model", str(model), *flags],
            env=os.environ | _ENVIRONMENT,
            cwd=folder,
            encoding="utf-8",
            dimensions=(_LINES, _COLUMNS),
        )
        self._screen = pyte.HistoryScreen(_COLUMNS, _LINES, history=10_000)
        self._stream = pyte.Stream(self._screen)

    def until_ready(self) -> None:
        """Waits for the first prompt."""
        self.until(lambda lines: "/help lists commands" in "".join(lines))  # wherever a long path cuts it
        self.until_prompt()

    def lines(self) -> list[str]:
        """What is to be seen, and what has gone off the top, of this conversation."""
        gone = ["".join(row[column].data for column in range(_COLUMNS)) for row in self._screen.history.top]
        return [line.rstrip() for line in (*gone, *self._screen.display)][self._begin :]

    def forget(self) -> None:
        """Begins another conversation."""
        self.child.send("/clear\r")
        self.until(lambda lines: "the conversation is forgotten" in lines)
        self.until_prompt()
        self._begin = len(self._screen.history.top) + self._screen.cursor.y
        self.talk = f"{self._begin}.json"

    def until(self, there: Callable[[list[str]], bool]) -> None:
        """Waits until the lines are so."""
        deadline = time.monotonic() + _LIMIT_S
        while not there(self.lines()):
            if time.monotonic() > deadline:
                pytest.fail("\n".join(line for line in self.lines() if line))
            try:
                self._stream.feed(self.child.read_nonblocking(4096, timeout=0.1))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                pytest.fail("the command has ended: " + "\n".join(line for line in self.lines() if line))

    def until_prompt(self) -> None:
        """Waits for an empty line to type on."""
        self.until(lambda _: self._screen.display[self._screen.cursor.y].rstrip() == ">")

    def say(self, keys: str) -> None:
        """Types the keys and Enter, and waits for the next prompt."""
        before = len([line for line in self.lines() if line])
        self.child.send(keys + "\r")
        self.until(lambda lines: len([line for line in lines if line]) > before)
        self.until_prompt()

    def saved(self) -> list[str]:
        """The contents of the messages so far."""
        self.child.send(f"/save {self.talk}\r")
        self.until(lambda lines: any(f"messages to {self.talk}" in line for line in lines))
        self.until_prompt()
        saved = json.loads((self.folder / self.talk).read_text())
        return [message["content"] for message in saved["messages"]]

    def ended(self) -> int:
        """Waits for the command's end; its exit status."""
        self.child.expect(pexpect.EOF, timeout=_LIMIT_S)
        self.child.wait()
        status: int = self.child.exitstatus
        return status


@pytest.fixture
def terminal(text_model: Path, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(text_model, tmp_path)
    try:
        opened.until_ready()
        yield opened
    finally:
        end_terminal(opened.child)


@pytest.mark.thin
def test_lines_are_edited_and_called_back(terminal: Terminal) -> None:
    """What is pasted is one message, and so are lines of Alt-Enter."""
    terminal.say("ba bex\x7f")
    terminal.say("bi bo\x01zu ")  # at the beginning of the line
    terminal.say(_UP + _UP)
    terminal.say(_PASTE.format("ba be\rbi\r\rbo"))
    terminal.say("ba\x1b\rzu")
    assert terminal.saved()[0::2] == ["ba be", "zu bi bo", "ba be", "ba be\nbi\n\nbo", "ba\nzu"]
    for key in ("\r", "\x1b[C", "\x1b[D", "\x1b[F"):  # what Ctrl-R finds is taken by Enter, right, left, End
        terminal.forget()
        terminal.say("ba be")
        terminal.say("bi bo")
        terminal.child.send("\x12ba")
        terminal.until(lambda lines: "> ba be\nI-search backward: ba" in "\n".join(lines))
        terminal.child.send(key)
        terminal.until(lambda lines: not any("search" in line for line in lines))
        terminal.child.send("\x05 zu\r")  # at the end of the line
        terminal.until(lambda lines: "> ba be zu" in lines)
        terminal.until_prompt()
        terminal.child.send("\x12bi\x07")  # and Ctrl-G leaves the line as it was
        terminal.until_prompt()
        assert terminal.saved()[0::2] == ["ba be", "bi bo", "ba be zu"]
    terminal.child.send("/bye\r")
    assert terminal.ended() == 0


def test_what_is_typed_during_an_answer_waits_and_words_are_wrapped(terminal: Terminal) -> None:
    """It is the next messages, and stands nowhere in the answer before them."""
    terminal.say("/set max_tokens 600")
    terminal.child.send("ba be\r")
    terminal.until(lambda lines: any(len(line) > 30 for line in lines[-_LINES + 6 :]))
    terminal.child.send("What now?\r" + _PASTE.format("zu\rzu") + "\r")
    terminal.until(lambda lines: "> What now?" in lines)
    terminal.until(lambda lines: "> zu" in lines)
    messages = terminal.saved()
    assert messages[0::2] == ["ba be", "What now?", "zu\nzu"]
    assert all(len(answer.split()) > 400 for answer in messages[1::2])  # whole, but for tokens without text
    assert not [line for line in terminal.lines() if "What now?" in line and line != "> What now?"]
    # Each line of an answer is as many whole words as it can hold.
    terminal.forget()
    terminal.say("/set max_tokens 120")
    terminal.say("ba be")
    answer = terminal.saved()[1].split()
    (begin,) = [at for at, line in enumerate(terminal.lines()) if line == "> ba be"]
    lines = terminal.lines()[begin + 1 :]
    shown = [line.split() for line in lines[: next(at for at, line in enumerate(lines) if line[:1] in "[>")]]
    assert len(shown) > 3
    assert [word for line in shown for word in line] == answer
    for line, after in pairwise(shown):
        assert len(" ".join(line)) < _COLUMNS <= len(" ".join([*line, after[0]])) + 1


def test_ctrl_c_stops_an_answer_then_clears_a_line_then_ends(terminal: Terminal) -> None:
    terminal.say("/set max_tokens 20000")
    terminal.child.send("ba be\r")
    terminal.until(lambda lines: any(len(line) > 30 for line in lines[-_LINES + 6 :]))
    terminal.child.sendcontrol("c")
    terminal.until(lambda lines: "[stopped]" in "".join(lines))
    terminal.until_prompt()
    terminal.child.send("half a line")
    terminal.until(lambda lines: "> half a line" in lines)
    terminal.child.sendcontrol("c")
    terminal.until_prompt()
    question, answer = terminal.saved()  # as far as it came
    assert (question, bool(answer.split())) == ("ba be", True)
    terminal.child.sendcontrol("c")
    terminal.until(lambda lines: "Ctrl-C again, or /bye, ends" in lines)
    terminal.until_prompt()
    terminal.child.sendcontrol("c")
    assert terminal.ended() == 0
