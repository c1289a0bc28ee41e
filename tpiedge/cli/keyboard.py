"""The keyboard of a chat: lines with editing and history on a terminal, plain lines from a pipe."""

import contextlib
import sys
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # takes a tenth of a second, for which a pipe need not wait
    from prompt_toolkit import PromptSession


_LOCAL_FLAGS = 3  # in what termios.tcgetattr returns
_INPUT_FLAGS = 0


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
