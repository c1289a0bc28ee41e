"""The chat of `tpiedge chat` and `tpiedge run` on the terminal."""

import contextlib
import json
import os
import re
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click

from tpiedge.engine.sampling import MAX_SEED, MAX_TOP_K, MIN_P, REPETITION_PENALTY, TEMPERATURE, TOP_P
from tpiedge.errors import ContextFull, PeerError, UserError
from tpiedge.sanitise import sanitised
from tpiedge.wire.fields import Range

ANSWER_TOKENS = 2048  # the usual limit of an answer: some models never stop

_HELP = """\
Enter sends a message, Alt-Enter starts a new line; pasted text is one message.
Ctrl-R searches earlier messages: Enter takes one, Enter again sends it, Ctrl-G cancels.
/clear          clear the conversation
/system TEXT    set the system prompt; without TEXT: remove it
/set NAME VALUE {names}
/set            show the settings
/save FILE      write the conversation as JSON
/bye            end (Ctrl-D); Ctrl-C stops an answer"""

SETTINGS: Mapping[str, tuple[Range, float]] = {
    "temperature": (TEMPERATURE, 0.7),
    "top_k": (Range(0, MAX_TOP_K), 40),
    "top_p": (TOP_P, 0.9),
    "min_p": (MIN_P, 0.05),
    "repetition_penalty": (REPETITION_PENALTY, 1.1),
    "seed": (Range(0, MAX_SEED), 7),
    "max_tokens": (Range(1, 2**32 - 1), 500),
}
"""Settings that /set changes: (range, example). The example is an int if only whole numbers are allowed."""

ChatMessage = dict[str, str]
Settings = Mapping[str, float]


@dataclass
class ChatAnswer:
    """An answer. `thinking`: the text shown last is reasoning."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, object] = field(default_factory=dict)
    thinking: bool = False


class ChatBackend(Protocol):
    """A model that answers. `settings`: from flags, else the model's defaults."""

    name: str
    settings: Settings

    def ask(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> ChatAnswer:
        """Answers the last message; blocks. `show` gets each piece. Raises UserError, PeerError."""


def messages_of(system: str | None, messages: str | Sequence[ChatMessage]) -> list[ChatMessage]:
    if isinstance(messages, str):
        messages = [_message("user", messages)]
    return [*([] if system is None else [_message("system", system)]), *messages]


def converse(backend: ChatBackend, system: str | None) -> None:
    keys: Pipe | Terminal = Terminal() if sys.stdin.isatty() else Pipe()
    if keys.interactive:
        click.echo(
            f"talking to {sanitised(backend.name)}; /help lists commands, /bye or Ctrl-D ends", err=True
        )
    conversation = Conversation(backend, keys, system)
    while (text := keys.read()) is not None:
        try:
            if not conversation.handle(text):
                return
        except KeyboardInterrupt:  # at a terminal, Ctrl-C ends the answer, not the conversation
            if not keys.interactive:
                raise


@dataclass(eq=False)
class Conversation:
    """The messages so far. A failed message is dropped; a stopped answer stays."""

    _backend: ChatBackend
    _keys: "Pipe | Terminal"
    _system: str | None
    _messages: list[ChatMessage] = field(default_factory=list)
    _settings: dict[str, float] = field(default_factory=dict)

    def handle(self, text: str) -> bool:
        """Handles a message or a command. Returns whether the conversation goes on."""
        command = re.fullmatch(r"/([a-z?]+)(?:\s+(.*))?", text.strip(), re.DOTALL | re.IGNORECASE)
        if command is None:
            if text.strip():
                self._answer(text)
            return True
        name, rest = command[1].lower(), (command[2] or "").strip()
        if name in ("bye", "exit", "quit"):
            return False
        try:
            self._obey(name, rest)
        except UserError as error:
            _tell(str(error))
        return True

    def _obey(self, name: str, rest: str) -> None:
        match name:
            case "help" | "?":
                click.echo(_HELP.format(names=", ".join(SETTINGS)), err=True)
            case "clear":
                self._messages.clear()
                self._confirm("conversation cleared")
            case "system":
                self._system = rest or None
                self._confirm(f"system prompt {'set' if rest else 'removed'}")
            case "set":
                self._set(rest)
            case "save":
                self._save(rest)
            case _:
                raise UserError(f"there is no command /{name}: /help lists them")

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if name:
            key = name.replace("-", "_")
            self._settings[key] = _parsed(key, value.strip())
            self._confirm(f"{key} {self._settings[key]}, from the next answer on")
        elif not (found := {**self._backend.settings, **self._settings}):
            _tell("nothing is set: the model's defaults apply")
        else:
            _tell(", ".join(f"{one} {value}" for one, value in found.items()))

    def _confirm(self, line: str) -> None:
        if self._keys.interactive:
            _tell(line)

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("/save needs the name of a file, like /save chat.json")
        record = {"model": self._backend.name, "messages": messages_of(self._system, self._messages)}
        try:
            with open(Path(name).expanduser(), "x", encoding="utf-8") as file:
                json.dump(record, file, indent=1, ensure_ascii=False)
        except FileExistsError:
            raise UserError(f"{name} exists already: give another name") from None
        except (OSError, ValueError) as error:
            raise UserError(f"cannot write {name}: {getattr(error, 'strerror', None) or error}") from None
        _tell(f"saved {len(self._messages)} messages to {name}")

    def _answer(self, text: str) -> None:
        messages = messages_of(self._system, [*self._messages, _message("user", text)])
        screen = Screen()
        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            screen.show(piece)

        try:
            with self._keys.waiting():
                answer = self._backend.ask(messages, self._settings, show)
        except KeyboardInterrupt:
            if not self._keys.interactive:
                raise
            screen.show(" [stopped]\n")
            if pieces:
                self._keep(text, "".join(pieces))
            return
        except (PeerError, UserError) as error:
            if not self._keys.interactive and not isinstance(error, ContextFull):
                raise
            if pieces:
                click.echo()
            _tell(f"tpiedge: {error}")
            return
        click.echo()
        if answer.finish_reason == "length" and self._keys.interactive:
            _tell("[cut off at max tokens; /set max_tokens N allows more]")
        self._keep(text, answer.text)

    def _keep(self, text: str, answer: str) -> None:
        self._messages += [_message("user", text), _message("assistant", answer)]


def _message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def _parsed(name: str, value: str) -> float:
    if name not in SETTINGS:
        raise UserError(f"/set knows {', '.join(SETTINGS)}, not {sanitised(name)[:40]}")
    allowed, example = SETTINGS[name]
    words = "a whole number" if isinstance(example, int) else "a number"
    try:
        number = type(example)(value)
    except ValueError:
        raise UserError(f"/set {name} needs {words}, like /set {name} {example}") from None
    if not allowed.low <= number <= allowed.high:
        raise UserError(f"/set {name}: give {words} from {allowed.low} to {allowed.high}")
    return number


def _tell(line: str) -> None:
    sys.stdout.flush()
    click.echo(line, err=True)


class WordWrap:
    """Wraps words. Leaves the last column free, where cursors get stuck."""

    def __init__(self, columns: int, cells: Callable[[str], int]) -> None:
        self._limit = max(columns - 1, 1)
        self._cells = cells
        self._column = 0
        self._word = ""
        self._word_cells = 0

    def push(self, text: str) -> str:
        return "".join(map(self._one, text.replace("\t", "    ")))

    def _one(self, mark: str) -> str:
        if mark == "\n":
            self._column, self._word, self._word_cells = 0, "", 0
            return mark
        if mark == " ":
            self._word, self._word_cells = "", 0
            if self._column >= self._limit:  # the edge parts the words
                return ""
            self._column += 1
            return mark
        cells, moved = max(self._cells(mark), 0), ""
        if self._column + cells > self._limit:
            moved = "\n"
            if self._word_cells == self._column:  # a word that fills the line is cut
                self._word, self._word_cells = "", 0
            elif self._word:
                moved = f"\x1b[{self._word_cells}D\x1b[K\n{self._word}"
            self._column = self._word_cells
        self._word += mark
        self._word_cells += cells
        self._column += cells
        return moved + mark


class Screen:
    def __init__(self) -> None:
        self.begun = False
        self._wrap: WordWrap | None = None
        if sys.stdout.isatty():
            from prompt_toolkit.utils import get_cwidth

            self._wrap = WordWrap(os.get_terminal_size(sys.stdout.fileno()).columns or 80, get_cwidth)

    def show(self, text: str) -> None:
        self.begun, clean = True, sanitised(text, "\n\t")
        click.echo(self._wrap.push(clean) if self._wrap else clean, nl=False)


class Pipe:
    interactive = False

    def read(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        yield


class Terminal:
    """Reads lines with editing and history. Pasted text is one message."""

    interactive = True

    def __init__(self) -> None:
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

        # A line that Ctrl-R found becomes the edited line.
        for key in ("enter", "right", "left", "home", "end"):
            keys.add(key, filter=is_searching)(accept_search)

        self._output = create_output(always_prefer_tty=True)  # standard output may be a file
        self._session: PromptSession[str] = PromptSession(
            key_bindings=keys,
            multiline=True,
            prompt_continuation="  ",
            enable_suspend=True,
            output=self._output,
        )

    def read(self) -> str | None:
        """Returns the next message; None after Ctrl-D or two Ctrl-C."""
        interrupts = 0
        while True:
            try:
                return self._session.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                # A single Ctrl-C may be meant for an answer.
                interrupts = 0 if self._session.default_buffer.text else interrupts + 1
                if interrupts > 1:
                    return None
                if interrupts:
                    click.echo("press Ctrl-C again, or type /bye, to end", err=True)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Keeps text typed during an answer for the next line."""
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
