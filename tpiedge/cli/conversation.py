"""The chat of `tpiedge chat` and `tpiedge run`: messages, and commands that begin with a slash."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click

from tpiedge.engine.sampling import MAX_SEED, MAX_TOP_K, MIN_P, REPETITION_PENALTY, TEMPERATURE, TOP_P
from tpiedge.errors import ContextFull, PeerError, TpiedgeError, UserError
from tpiedge.host.private_file import chat_history
from tpiedge.sanitise import sanitised
from tpiedge.wire.fields import Range

ANSWER_TOKENS = 2048  # the usual limit of an answer: some models never stop

_HELP = """\
Enter sends a message, Alt-Enter starts a new line; pasted text is one message.
Ctrl-R searches earlier messages: Enter takes one, Enter again sends it, Ctrl-G cancels.
/clear          clear the conversation
/model NAME     ask another model of the master; without NAME: show which one answers
/system TEXT    set the system prompt; without TEXT: remove it
/set NAME VALUE {names}
/set NAME       without VALUE: back to the value of the start, for seed a new one each time
/set stats off  hide the tokens per second after answers
/set history off  stop writing messages of this chat to the history, which later chats search
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
    """An answer. `thinking`: whether the text shown last is reasoning. `s_per_token`: seconds per token after the
    first, None if unknown."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, object] = field(default_factory=dict)
    thinking: bool = False
    s_per_token: float | None = None


class ChatBackend(Protocol):
    """A model that answers. `settings`: the values before /set, from flags or the model's defaults. `chooses`: whether
    another model may be chosen."""

    name: str
    settings: Settings
    chooses: bool

    def choose(self, name: str) -> None:
        """Lets another model answer from now on. Raises UserError, PeerError."""

    def ask(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> ChatAnswer:
        """Answers the last message. `settings` override the backend's. `show` gets each piece. Blocks. Raises
        UserError, PeerError."""


def messages_of(system: str | None, messages: str | Sequence[ChatMessage]) -> list[ChatMessage]:
    if isinstance(messages, str):
        messages = [_message("user", messages)]
    return [*([] if system is None else [_message("system", system)]), *messages]


class Keys(Protocol):
    """Reads what the user types."""

    interactive: bool

    def read(self) -> str | None:
        """Returns the next message, or None at the end. Blocks."""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which an answer is awaited and `read` is not called."""

    def keep_history(self, on: bool) -> str:
        """Starts or stops writing messages to the history. Returns a line for the user. Raises UserError, DiskFull."""


def converse(backend: ChatBackend, system: str | None, state: Path | None) -> None:
    """Runs a conversation. `state`: the state folder, with the history of chats."""
    keys: Keys = Pipe()
    if sys.stdin.isatty():
        from tpiedge.cli.terminal import Terminal  # its library takes 0.1 s to import

        keys = Terminal(chat_history(state))
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
    """A conversation so far. A message whose answer fails is dropped; a stopped answer stays."""

    _backend: ChatBackend
    _keys: Keys
    _system: str | None
    _messages: list[ChatMessage] = field(default_factory=list)
    _settings: dict[str, float] = field(default_factory=dict)
    _stats: bool = True  # as on the page: on weak machines, speed is what one looks for

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
        except TpiedgeError as error:
            _tell(str(error))
        return True

    def _obey(self, name: str, rest: str) -> None:
        match name:
            case "help" | "?":
                lines = _HELP if self._backend.chooses else re.sub("/model.*\n", "", _HELP)
                click.echo(lines.format(names=", ".join(SETTINGS)), err=True)
            case "clear":
                self._messages.clear()
                self._confirm("conversation cleared")
            case "system":
                self._system = rest or None
                self._confirm(f"system prompt {'set' if rest else 'removed'}")
            case "set":
                self._set(rest)
            case "model":
                if rest:
                    self._backend.choose(rest)
                _tell(f"talking to {sanitised(self._backend.name)}")
            case "save":
                self._save(rest)
            case _:
                raise UserError(f"there is no command /{name}: /help lists them")

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        key, value = name.replace("-", "_"), value.strip()
        if key in ("stats", "history"):
            if value not in ("on", "off"):
                raise UserError(f"/set {key} needs on or off, like /set {key} off")
            if key == "stats":
                self._stats = value == "on"
            self._confirm(self._keys.keep_history(value == "on") if key == "history" else f"stats {value}")
        elif key in SETTINGS and not value:
            self._settings.pop(key, None)
            self._confirm(f"{key} as at the start")
        elif name:
            self._settings[key] = _parsed(key, value)
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
        if self._keys.interactive:
            if answer.finish_reason == "length":
                _tell("[cut off at max tokens; /set max_tokens N allows more]")
            if self._stats and answer.s_per_token:
                _tell(f"[{answer.usage['completion_tokens']} tokens, {1 / answer.s_per_token:.1f} tokens/s]")
        self._keep(text, answer.text)

    def _keep(self, text: str, answer: str) -> None:
        self._messages += [_message("user", text), _message("assistant", answer)]


def _message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def _parsed(name: str, value: str) -> float:
    if name not in SETTINGS:
        raise UserError(f"/set knows {', '.join(SETTINGS)}, stats and history, not {sanitised(name)[:40]}")
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

    def keep_history(self, _on: bool) -> str:
        return "only chats at a terminal have a history"
