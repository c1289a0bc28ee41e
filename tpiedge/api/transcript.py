"""Makes pieces of an answer from events, and writes tokens' scores."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Self

from msgspec import Meta

from tpiedge.errors import Cancelled
from tpiedge.master.journal import AnswerEvent, Paused, Resumed
from tpiedge.master.request_times import Reading
from tpiedge.model.call_reader import short_call_id
from tpiedge.model.output import OutputPart, OutputText
from tpiedge.model.tokenizer import Detokenizer, TextWriter, Tokenizer, unfinished
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.fields import MAX_PROMPT_TOKENS, U32

_PART: Final = 64  # Tokens of the prompt in a piece: with twenty scores each, a millisecond's work.


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt's text, and the number of characters before each token."""

    text: str
    offsets: Annotated[tuple[U32, ...], Meta(max_length=MAX_PROMPT_TOKENS)]

    @classmethod
    def of(cls, prompt: object, ids: tuple[int, ...], tokenizer: Tokenizer | None) -> Self:
        """Finds the text of the tokens `ids`, and the offsets. `prompt`: the text, or else token ids. May take a
        second."""
        text = prompt if isinstance(prompt, str) else ""
        if tokenizer is None:
            return cls(text, (0,) * len(ids))
        if not isinstance(prompt, str):  # the answer shows an unfinished character
            text = tokenizer.decode(ids[: len(ids) - unfinished(tokenizer, ids)], skip_special=False)
        writer, begins, parts, length = Detokenizer(tokenizer, shown=tokenizer.special_ids), [], [], 0
        for token in ids:
            begins.append(length)
            parts.append(writer.push(token))
            length += len(parts[-1])
        whole = "".join(parts) + writer.finish()
        # The tokenizer may put tokens and a space before the text.
        added = len(whole) - len(text) if whole.endswith(text) else 0
        return cls(text, tuple(min(max(0, begin - added), len(text)) for begin in begins))


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of one choice. `offsets`: for each token, the number of characters before it. `last`: the finish reason,
    in the last piece."""

    text: str
    tokens: tuple[Token, ...]
    offsets: tuple[int, ...]
    last: str | None = None
    embedding: tuple[float, ...] = ()


class Transcript:
    """Makes the pieces of one choice. Laws: the joined texts of the pieces are the answer. Only the last piece has
    `last`. A token comes with the piece that shows the token's text."""

    def __init__(
        self,
        writer: TextWriter,
        tokenizer: Tokenizer | None,
        echo: EchoedPrompt | None = None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self.first_s: float | None = None
        self.writer = writer
        self._tokenizer = tokenizer
        self._echo = echo
        self._echoed_ids = prompt_ids
        #: The scores of the prompt's tokens; the first token has none.
        self._prompt_scores: list[tuple[tuple[int, float], ...]] = [()]
        self._begun = len(echo.text) if echo else 0
        self._held: list[tuple[Token, int]] = []
        self._embedding: tuple[float, ...] = ()
        self.count = 0
        self.finished: Finished | None = None
        """The last event; None if a stop string ended the answer."""
        self.paused = ""
        self.reading = ""
        self.pauses = 0
        self.paused_s = 0.0
        """Seconds of pauses that are over."""

    def before(self, event: AnswerEvent) -> Iterator[TextPiece]:
        """Yields the echoed prompt if `event` is the first token or the end."""
        if self._echo is None or not isinstance(event, Token | Finished):
            return
        (echo, ids), self._echo = (self._echo, self._echoed_ids), None
        scored = self._prompt_scores if len(self._prompt_scores) == len(ids) else [()] * len(ids)
        for first in range(0, len(ids), _PART):
            numbers = range(first, min(first + _PART, len(ids)))
            begin = echo.offsets[first] if first else 0
            end = echo.offsets[numbers.stop] if numbers.stop < len(ids) else len(echo.text)
            tokens = tuple(Token(0, "", number, ids[number], scored[number]) for number in numbers)
            yield TextPiece(echo.text[begin:end], tokens, echo.offsets[first : numbers.stop])

    def feed(self, event: AnswerEvent) -> TextPiece | None:
        """Returns the piece that `event` completes, if any. Raises Cancelled."""
        match event:
            case PromptScores(first=first, scores=scores, likeliest=likeliest):
                self.reading = ""
                for number, score in enumerate(scores if self._echo else ()):
                    each = len(likeliest) // len(scores)
                    own = (self._echoed_ids[first + number], score)
                    self._prompt_scores.append((*likeliest[number * each : (number + 1) * each], own))
            case Token(token=token, logprobs=logprobs):
                self.count += 1
                self.reading = ""
                self.first_s = time.monotonic() if self.first_s is None else self.first_s
                before = self.writer.length
                text, stopped = self.writer.push(token)
                self._held.append((event, self._text_start(token, before) if logprobs else before))
                if stopped:
                    return self._piece(text, "stop")
                return self._piece(text, None) if text or self._tokenizer is None else None
            case Embedding(values=values):
                self._embedding = values
            case Paused(why=why):
                self.paused, self.reading = why, ""
            case Reading():
                # `page/answer.js` and `cli/reach.py` parse these words.
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
                text, stopped = self.writer.finish()
                return self._piece(text, "stop" if stopped else reason)
        return None

    def _text_start(self, token: int, before: int) -> int:
        after = self.writer.length
        if self._tokenizer is None or after == before:
            return before
        # The token may have completed a character; a space at the answer's start is not shown.
        own = self._tokenizer.token_bytes(token) or b""
        return max(before, after - len(own.decode(errors="replace")))

    def _piece(self, text: str, last: str | None) -> TextPiece:
        held, self._held = self._held, []
        tokens, offsets = (token for token, _ in held), (self._begun + offset for _, offset in held)
        # A request may have thousands of vectors: none is kept after it was sent.
        embedding, self._embedding = self._embedding, ()
        return TextPiece(text, tuple(tokens), tuple(offsets), last, embedding)


def call_id(answer: str, choice: int, call: int) -> str:
    return short_call_id(f"{answer}/{choice}/{call}")


def joined(parts: Sequence[OutputPart], *, reasoning: bool) -> str:
    return "".join(one.text for one in parts if isinstance(one, OutputText) and one.reasoning == reasoning)


class TokenScores:
    """Writes the log probabilities of tokens, and of the `logprobs` likeliest tokens at each place. `without_bytes`:
    the value of `bytes` for tokens without bytes."""

    def __init__(
        self, tokenizer: Tokenizer | None, logprobs: int | None, *, without_bytes: list[int] | None = None
    ) -> None:
        self._logprobs = logprobs
        self._without_bytes = without_bytes
        self._kept: list[dict[str, object]] = []
        # Most scores of a long prompt are of the same tokens.
        self._bytes = cache(lambda token: None if tokenizer is None else tokenizer.token_bytes(token))

    def written(self, tokens: Sequence[Token]) -> list[dict[str, object]]:
        return [
            self._scored(token.token, self.own(token))
            | {"top_logprobs": [self._scored(*pair) for pair in token.logprobs[: self._logprobs]]}
            for token in tokens
        ]

    def keep(self, piece: TextPiece) -> None:
        if self._logprobs is not None:
            self._kept += self.written(piece.tokens)

    def pop(self) -> list[dict[str, object]]:
        kept, self._kept = self._kept, []
        return kept

    @staticmethod
    def own(token: Token) -> float | None:
        """Returns the token's own log probability; None for a prompt's first token."""
        return next((score for other, score in token.logprobs if other == token.token), None)

    def text(self, token: int) -> str:
        """Returns the token's text, "bytes:..." for a part of a character, or "token_id:..." without bytes."""
        data = self._bytes(token)
        if data is None:
            return f"token_id:{token}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _scored(self, token: int, score: float | None) -> dict[str, object]:
        data = self._bytes(token)
        shown = self._without_bytes if data is None else list(data)
        return {"token": self.text(token), "logprob": score, "bytes": shown}
