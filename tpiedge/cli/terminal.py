"""The terminal of a chat: answers wrapped between words as they come, and lines with editing and history."""

import contextlib
import os
import sys
import termios
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import click

from tpiedge.sanitise import sanitised

if TYPE_CHECKING:  # takes a tenth of a second, for which a pipe need not wait
    from prompt_toolkit import PromptSession


_TAB: Final = "    "
_COLUMNS = 80  # of a terminal that does not know
_LOCAL_FLAGS = 3  # in what termios.tcgetattr returns
_INPUT_FLAGS = 0


class WordWrap:
    """Text for a terminal of `columns` columns, which begins at the first one. `cells` is a character's width.

    A word that would cross the edge is taken back and begun anew on the next line. The last column stays free: a cursor
    that waits there for the next line could not be moved back.
    """

    def __init__(self, columns: int, cells: Callable[[str], int]) -> None:
        self._limit = max(columns - 1, 1)
        self._cells = cells
        self._column = 0
        self._word = ""
        self._word_cells = 0

    def push(self, text: str) -> str:
        """What to write for this text."""
        return "".join(map(self._one, text.replace("\t", _TAB)))

    def _one(self, mark: str) -> str:
        if mark == "\n":
            self._begin_line()
            return mark
        if mark == " ":
            self._word, self._word_cells = "", 0
            if self._column >= self._limit:  # the edge parts the words
                return ""
            self._column += 1
            return mark
        cells = max(self._cells(mark), 0)
        moved = ""
        if self._column + cells > self._limit:
            moved = self._moved_word()
        self._word += mark
        self._word_cells += cells
        self._column += cells
        return moved + mark

    def _moved_word(self) -> str:
        """Begins a line, with the word that was begun; a word that fills the line is cut instead."""
        word, cells = self._word, self._word_cells
        whole_line = cells == self._column
        self._begin_line()
        if whole_line or not word:
            return "\n"
        self._word, self._word_cells, self._column = word, cells, cells
        return f"\x1b[{cells}D\x1b[K\n{word}"

    def _begin_line(self) -> None:
        self._column, self._word, self._word_cells = 0, "", 0


class Screen:
    """Shows one answer, which begins at the start of a line: on a terminal its words are wrapped."""

    def __init__(self) -> None:
        self._wrap: WordWrap | None = None
        if sys.stdout.isatty():
            from prompt_toolkit.utils import (
                get_cwidth,  # takes a tenth of a second, for which a pipe need not wait
            )

            self._wrap = WordWrap(os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS, get_cwidth)

    def show(self, text: str) -> None:
        """The next piece of the answer, without what could command a terminal."""
        clean = sanitised(text, "\n\t")
        click.echo(self._wrap.push(clean) if self._wrap else clean, nl=False)


class Pipe:
    """Standard input that is not a terminal: a message is a line."""

    interactive = False

    def read(self) -> str | None:
        """The next message; None at the end."""
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While an answer comes."""
        yield


class Terminal:
    """A terminal: lines can be edited and called back, and what is pasted is one message."""

    interactive = True

    def __init__(self) -> None:
        self._session = _session()
        self._output = self._session.output

    def read(self) -> str | None:
        """The next message; None after Ctrl-D on an empty line, or after Ctrl-C twice on one: the first may have been
        meant for an answer that had just ended."""
        interrupts = 0
        while True:
            try:
                return self._session.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                interrupts = 0 if self._session.default_buffer.text else interrupts + 1
                if interrupts > 1:
                    return None
                if interrupts:
                    click.echo("Ctrl-C again, or /bye, ends", err=True)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While an answer comes, what is typed waits for the next line, and is not shown in the middle of it."""
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        quiet = termios.tcgetattr(fd)
        quiet[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
        quiet[_INPUT_FLAGS] &= ~termios.ICRNL  # Enter stays Enter for the line editor
        termios.tcsetattr(fd, termios.TCSANOW, quiet)
        self._output.enable_bracketed_paste()
        self._output.flush()
        try:
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSANOW, before)
            self._output.disable_bracketed_paste()
            self._output.flush()


Keyboard = Pipe | Terminal


def keyboard() -> Keyboard:
    """That of this process."""
    return Terminal() if sys.stdin.isatty() else Pipe()


def _session() -> "PromptSession[str]":
    """Enter ends a message, or a search for an earlier one, Alt-Enter a line of it."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.key_binding.bindings.search import accept_search
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=~is_searching)
    def _break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    for key in ("enter", "right", "left", "home", "end"):  # what was found (Ctrl-R) is the line from now on
        keys.add(key, filter=is_searching)(accept_search)

    terminal = create_output(always_prefer_tty=True)  # standard output may be a file
    return PromptSession(
        key_bindings=keys,
        multiline=True,
        prompt_continuation="  ",
        enable_suspend=True,
        output=terminal,
    )
