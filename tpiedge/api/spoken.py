"""What the pieces of a choice say: text, thoughts and calls of tools."""

import hashlib
import string

from tpiedge.api.transcript import TextPiece
from tpiedge.model.speech import Said, SpeechForm, SpeechReader

__all__ = ["SpokenChoice", "call_id"]

_ID_MARKS = string.ascii_letters + string.digits


class SpokenChoice:
    """Of one choice, whose pieces come in their order."""

    def __init__(self, form: SpeechForm) -> None:
        self._reader = SpeechReader(form)

    def take(self, piece: TextPiece) -> list[Said]:
        """What is certain with the piece."""
        said = self._reader.feed(piece.text)
        return said if piece.last is None else said + self._reader.finish()

    def ending(self, piece: TextPiece) -> str | None:
        """Why the piece, which was taken, is the last one: an answer that ends with calls waits for what they give."""
        return "tool_calls" if piece.last == "stop" and self._reader.calls else piece.last


def call_id(answer: str, choice: int, call: int) -> str:
    """Of a call: the same whenever it is told, and in the nine letters and digits that Mistral's templates want."""
    digest = hashlib.blake2b(f"{answer}/{choice}/{call}".encode(), digest_size=9).digest()
    return "".join(_ID_MARKS[byte % len(_ID_MARKS)] for byte in digest)
