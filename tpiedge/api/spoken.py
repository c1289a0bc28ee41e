"""What the pieces of a choice say: text, thoughts and calls of tools; and the scores of their tokens, in the form that
all APIs but the oldest share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpiedge.api.formats import Json
from tpiedge.api.transcript import TextPiece
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded, short_call_id
from tpiedge.model.speech import Said, SpeechForm, SpeechReader, SpokenText
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Token


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

    def told(self, tokens: Sequence[Token]) -> list[Json]:
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

    def _scored(self, token: int, score: float | None) -> Json:
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
