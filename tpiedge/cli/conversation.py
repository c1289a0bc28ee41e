"""What the two chats have in common: messages and answers, and the commands that begin with a slash."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from tpiedge.cli.terminal import Keyboard, Screen, keyboard
from tpiedge.engine.sampling import MAX_SEED, MAX_TOP_K, MIN_P, REPETITION_PENALTY, TEMPERATURE, TOP_P
from tpiedge.errors import ContextFull, PeerError, UserError
from tpiedge.sanitise import sanitised
from tpiedge.wire.fields import Range

ANSWER_TOKENS = 2048
"""Of an answer for which nobody gave another number: a model that never comes to an end is stopped."""

_HELP = """\
Enter sends a message, Alt-Enter begins a new line of it; what is pasted is one message.
Ctrl-R looks for an earlier message: Enter takes it, Enter again sends it, Ctrl-G gives up.
/clear          forget the conversation
/system TEXT    what the model is told first; without TEXT: nothing more
/set NAME VALUE {names}
/set            what is set
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
"""What /set changes: its range and an example, whole where it is a whole number."""
_COMMAND = re.compile(r"/([a-z?]+)(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)

ChatMessage = dict[str, str]
Settings = Mapping[str, float]
"""Numbers that flags or /set gave, by name."""


@dataclass(frozen=True)
class Spoken:
    """An answer, and why it ended: "stop", or "length" for the number of tokens."""

    text: str
    finish_reason: str | None


class Speaker(Protocol):
    """A model that answers."""

    name: str

    @property
    def settings(self) -> Settings:
        """What flags set, or else the model's habits where they are known here."""
        ...

    def speak(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> Spoken:
        """The answer to the last message; blocks. `show` gets it piece by piece. Raises UserError, PeerError."""
        ...


def messages_of(system: str | None, messages: str | Sequence[ChatMessage]) -> list[ChatMessage]:
    """What the model gets of a conversation, or of one message of the user: what it is told first comes first."""
    if isinstance(messages, str):
        messages = [_message("user", messages)]
    return [*([] if system is None else [_message("system", system)]), *messages]


def converse(speaker: Speaker, system: str | None) -> None:
    """A conversation with standard input, until its end or /bye."""
    keys = keyboard()
    if keys.interactive:
        click.echo(
            f"talking to {sanitised(speaker.name)}; /help lists commands, /bye or Ctrl-D ends", err=True
        )
    conversation = Conversation(speaker, keys, system)
    while (text := keys.read()) is not None and _taken(conversation, text, keys):
        pass


def _taken(conversation: "Conversation", text: str, keys: Keyboard) -> bool:
    """As `take`. At a terminal, Ctrl-C ends what is under way and not the conversation."""
    try:
        return conversation.take(text)
    except KeyboardInterrupt:
        if not keys.interactive:
            raise
        return True


class Conversation:
    """The messages so far. A message without an answer, or whose answer broke off, is forgotten; one that the user
    stopped stays as far as it came."""

    def __init__(self, speaker: Speaker, keys: Keyboard, system: str | None) -> None:
        self._speaker = speaker
        self._keys = keys
        self._system = system
        self._messages: list[ChatMessage] = []
        self._settings: dict[str, float] = {}

    def take(self, text: str) -> bool:
        """A message or a command; false where that ends the conversation."""
        command = _COMMAND.fullmatch(text.strip())
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
                self._confirm("the conversation is forgotten")
            case "system":
                self._system = rest or None
                self._confirm(f"the model is told {'this' if rest else 'nothing'} first from now on")
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
        elif not (found := {**self._speaker.settings, **self._settings}):
            _tell("nothing is set: all is as usual for the model")
        else:
            _tell(", ".join(f"{one} {value}" for one, value in found.items()))

    def _confirm(self, line: str) -> None:
        """Says what a command did, where somebody looks."""
        if self._keys.interactive:
            _tell(line)

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("/save needs the name of a file, like /save chat.json")
        record = {"model": self._speaker.name, "messages": messages_of(self._system, self._messages)}
        try:
            with open(Path(name).expanduser(), "x", encoding="utf-8") as file:
                json.dump(record, file, indent=1, ensure_ascii=False)
        except FileExistsError:
            raise UserError(f"{name} is there already: give another name") from None
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
                spoken = self._speaker.speak(messages, self._settings, show)
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
        if spoken.finish_reason == "length" and self._keys.interactive:
            _tell("[cut: the answer has as many tokens as it may; /set max_tokens allows more]")
        self._keep(text, spoken.text)

    def _keep(self, text: str, answer: str) -> None:
        self._messages += [_message("user", text), _message("assistant", answer)]


def _message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def _parsed(name: str, value: str) -> float:
    """The number that /set gives a setting. Raises UserError."""
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
