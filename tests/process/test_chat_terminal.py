import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.process.command import COMMAND, end_terminal
from tpiedge.cli.terminal import ChatHistory

# A terminal that answers no questions about its cursor is not waited for.
_ENVIRONMENT = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
_PASTE = "\x1b[200~{}\x1b[201~"
_UP = "\x1b[A"
_COLUMNS = 60
_LINES = 40
_LIMIT_S = 60


class Terminal:
    def __init__(self, model: Path, folder: Path) -> None:
        flags = ["--threads", "1", "--temperature", "0", "--max-tokens", "6", "--ignore-eos"]
        self.folder = folder
        self.child = pexpect.spawn(
            COMMAND,
            ["run", "--model", str(model), *flags],
            env=os.environ | _ENVIRONMENT | {"TPIEDGE_STATE": str(folder / "state")},
            cwd=folder,
            encoding="utf-8",
            dimensions=(_LINES, _COLUMNS),
        )
        self._screen = pyte.HistoryScreen(_COLUMNS, _LINES, history=10_000)
        self._stream = pyte.Stream(self._screen)

    def until_ready(self) -> None:
        self.until(lambda lines: "/help lists commands" in "".join(lines))  # wherever a long path cuts it
        self.until_prompt()

    def lines(self) -> list[str]:
        gone = ["".join(row[column].data for column in range(_COLUMNS)) for row in self._screen.history.top]
        return [line.rstrip() for line in (*gone, *self._screen.display)]

    def until(self, there: Callable[[list[str]], bool]) -> None:
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
        self.until(lambda _: self._screen.display[self._screen.cursor.y].rstrip() == ">")

    def say(self, keys: str) -> None:
        before = len([line for line in self.lines() if line])
        self.child.send(keys + "\r")
        self.until(lambda lines: len([line for line in lines if line]) > before)
        self.until_prompt()

    def saved(self) -> list[str]:
        self.child.send("/save talk.json\r")
        self.until(lambda lines: any("messages to talk.json" in line for line in lines))
        self.until_prompt()
        saved = json.loads((self.folder / "talk.json").read_text())
        return [message["content"] for message in saved["messages"]]

    def ended(self) -> int:
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
def test_chat_prompt_supports_line_editing_and_history(terminal: Terminal) -> None:
    """A paste is one message, and so are lines joined by Alt-Enter."""
    terminal.say("ba bex\x7f")
    terminal.say("bi bo\x01zu ")  # at the beginning of the line
    terminal.say(_UP + _UP)
    terminal.say(_PASTE.format("ba be\rbi\r\rbo"))
    terminal.say("ba\x1b\rzu")
    assert terminal.saved()[0::2] == ["ba be", "zu bi bo", "ba be", "ba be\nbi\n\nbo", "ba\nzu"]
    terminal.child.send("/bye\r")
    assert terminal.ended() == 0


def test_ctrl_r_finds_a_message_of_an_earlier_chat(text_model: Path, tmp_path: Path) -> None:
    """Enter takes what is found into the line; Enter again sends it."""
    ChatHistory(tmp_path / "state" / "chat-history").store_string("zu bi bo")
    opened = Terminal(text_model, tmp_path)
    try:
        opened.until_ready()
        opened.child.send("\x12bi b")
        opened.until(lambda lines: "> zu bi bo" in lines and "I-search" in "".join(lines))
        opened.child.send("\r")
        opened.until(lambda lines: "> zu bi bo" in lines and "I-search" not in "".join(lines))
        opened.child.send("\x05 ba")
        opened.until(lambda lines: "> zu bi bo ba" in lines)
        opened.say("")
        opened.until(
            lambda lines: any(re.fullmatch(r"\[6 tokens, \d+\.\d tokens/s\]", line) for line in lines)
        )
        assert opened.saved()[0::2] == ["zu bi bo ba"]
    finally:
        end_terminal(opened.child)


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
    terminal.until(lambda lines: "press Ctrl-C again, or type /bye, to end" in lines)
    terminal.until_prompt()
    terminal.child.sendcontrol("c")
    assert terminal.ended() == 0
