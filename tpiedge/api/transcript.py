"""Events of a generation to the pieces of an answer, which may begin with its prompt, and what the pieces of a choice
say: text, thoughts and calls of tools; and the scores of their tokens, in the form that all APIs but the oldest share.
No input or output here."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Self

from msgspec import Meta

from tpiedge.answers.generation import AnswerEvent
from tpiedge.errors import Cancelled
from tpiedge.master.journal import Paused, Resumed
from tpiedge.master.request_times import Reading
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded, short_call_id
from tpiedge.model.speech import Said, SpeechForm, SpeechReader, SpokenText
from tpiedge.model.tokenizer import Detokenizer, TextWriter, Tokenizer
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.fields import U32
from tpiedge.wire.limits import MAX_PROMPT_TOKENS

_PART: Final = 64
"""Tokens that are told at a time: with twenty scores each they are a millisecond's work."""
_MAX_TEXT: Final = 2**31 - 1
"""Characters of a prompt, which the size of a request's body bounds long before."""

EchoPart = tuple[str, tuple[Token, ...], tuple[int, ...]]
"""A text, its tokens, and where each of them begins in the whole text."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """What stands for a prompt's tokens, and how many characters of it before each of them."""

    text: Annotated[str, Meta(max_length=_MAX_TEXT)]
    offsets: Annotated[tuple[U32, ...], Meta(max_length=MAX_PROMPT_TOKENS)]

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], tokenizer: Tokenizer | None) -> Self:
        """Of the tokens `ids`. Takes a second for 32,000: for a thread."""
        if tokenizer is None:
            return cls(text, (0,) * len(ids))
        writer, begins, parts, length = Detokenizer(tokenizer, skip_special=False), [], [], 0
        for token in ids:
            begins.append(length)
            parts.append(writer.push(token))
            length += len(parts[-1])
        whole = "".join(parts) + writer.finish()
        # Tokens that the tokenizer itself put before the text, and a space, do not stand in it.
        added = len(whole) - len(text) if whole.endswith(text) else 0
        return cls(text, tuple(min(max(0, begin - added), len(text)) for begin in begins))


class PromptEcho:
    """Collects the scores of a prompt, where they are wanted, which all come before the answer."""

    def __init__(self, prompt: EchoedPrompt, ids: tuple[int, ...]) -> None:
        """`ids`: the prompt's tokens."""
        self.prompt = prompt
        self.ids = ids
        self._logprobs: list[tuple[tuple[int, float], ...]] = [()]  # nothing comes before the first token

    def take(self, scores: PromptScores) -> None:
        """The next part."""
        each = len(scores.likeliest) // len(scores.scores)
        for number, score in enumerate(scores.scores):
            own = (self.ids[scores.first + number], score)
            self._logprobs.append((*scores.likeliest[number * each : (number + 1) * each], own))

    def parts(self) -> Iterator[EchoPart]:
        """All of it. Tokens as those of answers: the likeliest first, and the token's own score at the end; without any
        score for the first one."""
        text, ids, offsets = self.prompt.text, self.ids, self.prompt.offsets
        scored = self._logprobs if len(self._logprobs) == len(ids) else [()] * len(ids)
        for first in range(0, len(ids), _PART):
            numbers = range(first, min(first + _PART, len(ids)))
            begin = offsets[first] if first else 0
            end = offsets[numbers.stop] if numbers.stop < len(ids) else len(text)
            tokens = tuple(Token(0, "", number, ids[number], scored[number]) for number in numbers)
            yield text[begin:end], tokens, offsets[first : numbers.stop]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of the answer: its text and the tokens that came with it, each with the character of the whole answer that
    it begins at. `last` says why it is the last one. `embedding`: the vector, in place of an answer."""

    text: str
    tokens: tuple[Token, ...]
    offsets: tuple[int, ...]
    last: str | None = None
    embedding: tuple[float, ...] = ()


class Transcript:
    """Laws: the texts of all pieces, joined, are those of the whole answer; so are the tokens; after the piece
    with `last` there is none. A token whose text is not certain yet waits for the piece that shows it."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stops: Sequence[str],
        echo: PromptEcho | None = None,
        marks: Sequence[str] = (),
        after: Sequence[int] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`echo`: the prompt, where the answer begins with it. No stop string is looked for in it. `marks`: special
        tokens that are not left out. `after`: the tokens that its text goes on after. `now` gives seconds."""
        self._now = now
        self.first_s: float | None = None
        """When the first token came."""
        self._writer = TextWriter(tokenizer, stops, after, marks)
        self._tokenizer = tokenizer
        self._echo = echo
        self._begun = len(echo.prompt.text) if echo else 0
        self._held: list[tuple[Token, int]] = []
        self._embedding: tuple[float, ...] = ()
        self.count = 0
        """Tokens of the answer so far."""
        self.finished: Finished | None = None
        """What rank 0 said at the end; None before it, and where a stop string ended the answer."""
        self.paused = ""
        """Why it pauses, while it does."""
        self.reading = ""
        """How far its prompt is read, while that is told."""
        self.pauses = 0
        self.paused_s = 0.0
        """How often it paused, and for how long in all, the pause that lasts not included."""

    @property
    def stop(self) -> str:
        """The stop string that ended the answer; "" where none did."""
        return self._writer.stop

    def before(self, event: AnswerEvent) -> Iterator[TextPiece]:
        """The prompt, where the answer begins with it and `event` is its first, which is fed then. A long one takes
        long: others are to have their turns between its pieces."""
        if self._echo is not None and isinstance(event, Token | Finished):
            echo, self._echo = self._echo, None
            for text, tokens, offsets in echo.parts():
                yield TextPiece(text, tokens, offsets)

    def feed(self, event: AnswerEvent) -> TextPiece | None:
        """The piece that `event` completes. Raises Cancelled where the service gave up the request."""
        match event:
            case PromptScores():
                self.reading = ""  # nothing more is told of it
                if self._echo is not None:
                    self._echo.take(event)
            case Token(token=token, logprobs=logprobs):
                self.count += 1
                self.reading = ""
                self.first_s = self._now() if self.first_s is None else self.first_s
                before = self._writer.length
                text, stopped = self._writer.push(token)
                self._held.append((event, self._begin(token, before) if logprobs else before))
                if stopped:
                    return self._piece(text, "stop")
                return self._piece(text, None) if text or self._tokenizer is None else None
            case Embedding(values=values):
                self._embedding = values
            case Paused(why=why):
                self.paused, self.reading = why, ""
            case Reading():
                # In words that clients know, too (`page/answer.js`, `cli/reach.py`).
                self.reading = f"reading {event.done_tokens} of {event.of_tokens} tokens"
                if event.left_s is not None:
                    self.reading += f", {math.ceil(event.left_s)} s left"
            case Resumed(paused_s=paused_s):
                self.paused = ""
                self.pauses += 1
                self.paused_s += paused_s
            case Finished(reason="cancel"):
                raise Cancelled("the request was cancelled: the server is shutting down or gave it up")
            case Finished(reason=reason):
                self.finished = event
                text, stopped = self._writer.finish()
                return self._piece(text, "stop" if stopped else reason)
        return None

    def _begin(self, token: int, before: int) -> int:
        """Where the text of `token` begins, which made the answer longer than `before`, or did not. The bytes of an
        unfinished character before it may have become text with it; a space at the answer's start is not shown."""
        after = self._writer.length
        if self._tokenizer is None or after == before:
            return before
        own = self._tokenizer.token_bytes(token) or b""
        return max(before, after - len(own.decode(errors="replace")))

    def _piece(self, text: str, last: str | None) -> TextPiece:
        held, self._held = self._held, []
        tokens, offsets = (token for token, _ in held), (self._begun + offset for _, offset in held)
        # Of thousands of texts no vector is kept after it was sent.
        embedding, self._embedding = self._embedding, ()
        return TextPiece(text, tuple(tokens), tuple(offsets), last, embedding)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """All of a call. `arguments`: a JSON object, or where the call did not come to its end the beginning of one;
    `broken`: in that case, what the model wrote."""

    index: int
    name: str
    arguments: str
    broken: str = ""


class SpokenChoice:
    """Of one choice, whose pieces come in their order. Each is taken once, in one of both ways."""

    def __init__(self, form: SpeechForm) -> None:
        self._reader = SpeechReader(form)
        self._required = form.required
        self._name = ""
        self._arguments: list[str] = []

    def take(self, piece: TextPiece) -> list[Said]:
        """What is certain with the piece."""
        said = self._reader.feed(piece.text)
        return said if piece.last is None else said + self._reader.finish(cut=piece.last == "length")

    def take_whole(self, piece: TextPiece) -> Iterator[SpokenText | ToolCall]:
        """The same, for those who want a call once it has ended."""
        for said in self.take(piece):
            match said:
                case CallBegun(name=name):
                    self._name, self._arguments = name, []
                case CallArguments(text=text):
                    self._arguments.append(text)
                case CallEnded(index=index, broken=broken):
                    yield ToolCall(index, self._name, "".join(self._arguments), broken)
                case SpokenText():
                    yield said

    def take_objects(self, piece: TextPiece) -> Iterator[SpokenText | ToolCall]:
        """The same, for those who want arguments as objects: a call that did not come to its end is the text that the
        model wrote, or nothing where it was cut, or where the answer must be calls."""
        for said in self.take_whole(piece):
            if not isinstance(said, ToolCall) or not said.broken:
                yield said
            elif piece.last != "length" and not self._required:
                yield SpokenText(said.broken)

    def ending(self, piece: TextPiece) -> str | None:
        """Why the piece, which was taken, is the last one: an answer that ends with calls waits for what they give."""
        called = self._reader.calls and not self._reader.broken
        return "tool_calls" if piece.last == "stop" and called else piece.last


def call_id(answer: str, choice: int, call: int) -> str:
    """The id of a call: the same whenever it is told."""
    return short_call_id(f"{answer}/{choice}/{call}")


class TokenScores:
    """Writes the scores of one answer. `top`: how many of the likeliest tokens are told of each; `without_bytes`: what
    is told as the bytes of one that has none."""

    def __init__(
        self, tokenizer: Tokenizer | None, top: int, *, without_bytes: list[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self.top = top
        self._without_bytes = without_bytes
        self._known: dict[int, bytes | None] = {}

    def told(self, tokens: Sequence[Token]) -> list[dict[str, object]]:
        """An object for each token, with those of the likeliest."""
        return [
            self._scored(token.token, own_score(token))
            | {"top_logprobs": [self._scored(*pair) for pair in token.logprobs[: self.top]]}
            for token in tokens
        ]

    def text(self, token: int) -> str:
        """The token's text with its leading space. A part of a character is written as OpenAI does:
        bytes:\\xe4\\xbd."""
        data = self._bytes(token)
        if data is None:
            return f"token_id:{token}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _scored(self, token: int, score: float | None) -> dict[str, object]:
        data = self._bytes(token)
        return {
            "token": self.text(token),
            "logprob": score,
            "bytes": self._without_bytes if data is None else list(data),
        }

    def _bytes(self, token: int) -> bytes | None:
        """Each is asked for once: of a long prompt's scores most are of the same tokens."""
        if self._tokenizer is None:
            return None
        if token not in self._known:
            self._known[token] = self._tokenizer.token_bytes(token)
        return self._known[token]


def own_score(token: Token) -> float | None:
    """The log probability of the token itself, which is among those that came; None of a prompt's first token."""
    return next((score for other, score in token.logprobs if other == token.token), None)
