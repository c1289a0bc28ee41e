"""Answers as OpenAI's Responses API has them, whole or in numbered events that have names."""

from collections.abc import Iterable, Sequence
from typing import Final

from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerHead
from tpiedge.api.frames import EVENT_STREAM, Json, comment, named_event
from tpiedge.api.transcript import TextPiece, Transcript

__all__ = ["ResponsesFormat"]

#: Of the one message in an answer, and the one text in this.
_PLACE: Final = {"output_index": 0, "content_index": 0}


class ResponsesFormat:
    """An AnswerFormat of one choice."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._number = 0
        self._text = ""
        self._last = ""

    def opening(self) -> Sequence[bytes]:
        begun = self._response("in_progress", [])
        item = self._item("in_progress", [])
        return self._events(
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.content_part.added", **self._place, "part": _part("")},
        )

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        self._last = piece.last or ""
        if not piece.text:
            return ()
        self._text += piece.text
        delta: Json = {"type": "response.output_text.delta", **self._place, "delta": piece.text}
        return self._events(delta | {"logprobs": []})

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        (only,) = transcripts
        response = self._ended(self._text, self._last, only)
        part = _part(self._text)
        return self._events(
            {"type": "response.output_text.done", **self._place, "text": self._text, "logprobs": []},
            {"type": "response.content_part.done", **self._place, "part": part},
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": self._item(_status(self._last), [part]),
            },
            {"type": f"response.{_status(self._last)}", "response": response},
        )

    def alive(self, why: str) -> bytes:
        return comment(why or "ping")

    def broken(self, error: ApiError, tokens: int) -> bytes:
        failed = self._response("failed", []) | self._usage(tokens, 0)
        failed["error"] = {"code": "server_error", "message": error.message}
        return b"".join(self._events({"type": "response.failed", "response": failed}))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        (parts,), (only,) = pieces, transcripts
        return self._ended("".join(piece.text for piece in parts), parts[-1].last or "", only)

    def failure(self, error: ApiError, _tokens: int) -> Json:
        return error.body() | {"id": self._head.id}

    @property
    def _item_id(self) -> str:
        return f"msg-{self._head.id.partition('-')[2]}"

    @property
    def _place(self) -> Json:
        return {"item_id": self._item_id, **_PLACE}

    def _events(self, *events: Json) -> list[bytes]:
        return list(self._numbered(events))

    def _numbered(self, events: Iterable[Json]) -> Iterable[bytes]:
        for one in events:
            yield named_event(str(one["type"]), one | {"sequence_number": self._number})
            self._number += 1

    def _item(self, status: str, content: list[Json]) -> Json:
        head = {"id": self._item_id, "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    def _ended(self, text: str, last: str, transcript: Transcript) -> Json:
        status = _status(last)
        found = self._response(status, [self._item(status, [_part(text)])])
        if status == "incomplete":
            found["incomplete_details"] = {"reason": "max_output_tokens"}
        ended = transcript.finished
        return found | self._usage(transcript.count, ended.cached_tokens if ended is not None else 0)

    def _response(self, status: str, output: list[Json]) -> Json:
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._head.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
        }

    def _usage(self, tokens: int, cached: int) -> Json:
        prompt = sum(self._head.prompt_tokens)
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        }
        return {"usage": usage}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(last: str) -> str:
    return "incomplete" if last == "length" else "completed"
