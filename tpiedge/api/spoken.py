"""What the pieces of a choice say: text, thoughts and calls of tools."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpiedge.api.transcript import TextPiece
from tpiedge.model.call_forms import short_call_id
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.speech import Said, SpeechForm, SpeechReader, SpokenText


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
