"""Answers as Anthropic's API has them: messages, whole or in events that have names."""

from collections.abc import Mapping, Sequence
from typing import Final

from tpiedge.api.error_shapes import anthropic_error
from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerHead
from tpiedge.api.frames import EVENT_STREAM, Json, comment, named_event
from tpiedge.api.transcript import TextPiece, Transcript

__all__ = ["AnthropicFormat"]

_PING: Final = named_event("ping", {"type": "ping"})


class AnthropicFormat:
    """An AnswerFormat of one choice."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._last = ""

    def opening(self) -> Sequence[bytes]:
        usage = {"input_tokens": self._input, "output_tokens": 0}
        message = self._message([], {"stop_reason": None, "stop_sequence": None}, usage)
        block = {"type": "text", "text": ""}
        return (
            _event("message_start", message=message),
            _event("content_block_start", index=0, content_block=block),
        )

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        self._last = piece.last or ""
        if not piece.text:
            return ()
        return (_event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece.text}),)

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        (only,) = transcripts
        return (
            _event("content_block_stop", index=0),
            _event("message_delta", delta=_ending(self._last, only), usage=self._usage(only)),
            _event("message_stop"),
        )

    def alive(self, why: str) -> bytes:
        return comment(why) + _PING if why else _PING

    def broken(self, error: ApiError, _tokens: int) -> bytes:
        return named_event("error", anthropic_error(error))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        (parts,), (only,) = pieces, transcripts
        text = "".join(piece.text for piece in parts)
        content: list[Json] = [{"type": "text", "text": text}]
        return self._message(content, _ending(parts[-1].last or "", only), self._usage(only))

    def failure(self, error: ApiError, _tokens: int) -> Json:
        return anthropic_error(error)

    @property
    def _input(self) -> int:
        return sum(self._head.prompt_tokens)

    def _usage(self, transcript: Transcript) -> Json:
        """Tokens that were kept from earlier requests count apart, as theirs do."""
        ended = transcript.finished
        cached = ended.cached_tokens if ended is not None else 0
        return {
            "input_tokens": self._input - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": transcript.count,
        }

    def _message(self, content: list[Json], ending: Json, usage: Mapping[str, object]) -> Json:
        head = {"id": self._head.id, "type": "message", "role": "assistant", "model": self._head.model}
        return {**head, "content": content, **ending, "usage": usage}


def _event(kind: str, **fields: object) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def _ending(last: str, transcript: Transcript) -> Json:
    reason = "max_tokens" if last == "length" else "end_turn"
    if transcript.stop:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": transcript.stop or None}
