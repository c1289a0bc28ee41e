"""The terminal of a chat, which reads messages and keeps their history."""

import contextlib
import sys
import termios
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.filters import is_searching
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.bindings.search import accept_search
from prompt_toolkit.output import create_output

from tpiedge.errors import TpiedgeError, cannot_write
from tpiedge.host.private_file import private_bytes, private_folder, replace_text


class ChatHistory(FileHistory):
    """The messages of this chat and of earlier chats, in a file that only its owner reads. `kept` says whether new
    messages are written. `problem` is an error that the user was not told yet, or ""."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path, self.kept, self.problem = path, False, ""
        try:
            self.keep(True)
        except TpiedgeError as error:
            self.problem = f"no history of chats is kept: {error}"

    def keep(self, on: bool) -> None:
        """Starts or stops writing messages. Raises UserError, DiskFull."""
        self.kept = False
        if on:
            private_folder(self.path.parent)
            try:
                self.path.touch(mode=0o600)
            except OSError as error:
                raise cannot_write(self.path, error) from None
            held = private_bytes(self.path, sys.maxsize)  # refuses a file that others may read
            # The oldest messages of a long history go, about half of it at once.
            cut = held.rfind(b"\n# ", 0, -(2 << 20)) if len(held) > 4 << 20 else -1
            if cut > 0:
                replace_text(self.path, held[cut:].decode("utf-8", "replace"))
            self.kept = True

    def load_history_strings(self) -> Iterable[str]:
        return super().load_history_strings() if self.kept else ()

    def store_string(self, string: str) -> None:
        if not self.kept:
            return
        try:
            self.path.touch(mode=0o600)  # the user may have deleted it meanwhile
            super().store_string(string.encode("utf-8", "replace").decode())  # not all that is typed is UTF-8
        except OSError as error:
            self.kept, self.problem = False, f"{cannot_write(self.path, error)}: the history ends here"


class Terminal:
    """Reads lines with editing and history; pasted text is one message."""

    interactive = True

    def __init__(self, history: Path) -> None:
        keys = KeyBindings()

        @keys.add("enter", filter=~is_searching)
        def _send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=~is_searching)
        def _break_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        # A line that Ctrl-R found becomes the edited line.
        for key in ("enter", "right", "left", "home", "end"):
            keys.add(key, filter=is_searching)(accept_search)

        self._history = ChatHistory(history)
        self._output = create_output(always_prefer_tty=True)  # standard output may be a file
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            key_bindings=keys,
            multiline=True,
            prompt_continuation="  ",
            enable_suspend=True,
            output=self._output,
        )

    def read(self) -> str | None:
        """Returns the next message. Returns None after Ctrl-D or two Ctrl-C. One Ctrl-C does not end the chat, because
        the user may want to stop an answer."""
        interrupts = 0
        if self._history.problem:
            click.echo(self._history.problem, err=True)
            self._history.problem = ""
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
                    click.echo("press Ctrl-C again, or type /bye, to end", err=True)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Text that is typed during an answer is not shown, and begins the next message."""
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        quiet = termios.tcgetattr(fd)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        quiet[0] &= ~termios.ICRNL  # Enter stays Enter for the line editor
        termios.tcsetattr(fd, termios.TCSANOW, quiet)
        self._output.enable_bracketed_paste()
        self._output.flush()
        try:
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSANOW, before)
            self._output.disable_bracketed_paste()
            self._output.flush()

    def keep_history(self, on: bool) -> str:
        self._history.keep(on)
        return f"messages are {'' if on else 'no longer '}written to {self._history.path}"
