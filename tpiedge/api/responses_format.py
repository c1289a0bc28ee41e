"""Answers as OpenAI's Responses API has them: items, whole or in numbered events that have names."""

import json
from collections.abc import Sequence
from typing import Any

from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerFormat, AnswerHead, Json, named_event
from tpiedge.api.responses_request import bare_name
from tpiedge.api.spoken import SpokenChoice, TokenScores, call_id
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.speech import Said, SpokenText


class ResponsesFormat(AnswerFormat):
    """Responses, of one choice. Neighbouring texts of a kind are one item."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._echo: dict[str, Any] = json.loads(head.reply.echo or "{}")
        self._spoken = SpokenChoice(head.reply.speech)
        self._number = 0
        self._last = ""
        self._items: list[Json] = []
        #: The text of the item that is written, the last one, where one is.
        self._written: str | None = None
        #: Scores of its tokens, and of those whose text is not shown yet.
        self._written_scores: list[Json] = []
        self._untold: list[Json] = []
        self._scores = TokenScores(head.tokenizer, head.reply.logprobs or 0, without_bytes=[])
        #: Of the call that is written, if one is.
        self._arguments = ""

    def opening(self) -> Sequence[bytes]:
        begun = self._response("in_progress", [])
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        return self._taken(piece)

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        (only,) = transcripts
        response = self._ended(only)
        return [self._event(f"response.{response['status']}", response=response)]

    def broken(self, error: ApiError, tokens: int) -> bytes:
        failed = self._response("failed", self._items) | self._usage(tokens, 0)
        failed["error"] = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=failed)

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        """Of the items that a stream of it would have written."""
        (parts,), (only,) = pieces, transcripts
        for piece in parts:
            self._taken(piece)
        return self._ended(only)

    # --- items

    def _taken(self, piece: TextPiece) -> list[bytes]:
        if self.head.reply.logprobs is not None:
            self._untold += self._scores.told(piece.tokens)
        frames = [frame for said in self._spoken.take(piece) for frame in self._said(said)]
        if piece.last is None:
            return frames
        self._last = piece.last
        if self._written is not None and self._items[-1]["type"] == "message":
            self._written_scores += self._tell()  # of tokens without a text
        if not self._items:
            frames += self._begun("message")
        return frames + self._done()

    def _said(self, said: Said) -> list[bytes]:
        match said:
            case CallBegun():
                return self._call_begun(said)
            case CallArguments(text=text):
                self._arguments += text
                return [self._event("response.function_call_arguments.delta", **self._call_place, delta=text)]
            case CallEnded(broken=broken):
                return self._call_ended("incomplete" if broken else "completed")
            case SpokenText(thought=thought):
                frames = self._begun("reasoning" if thought else "message")
                return [*frames, self._delta(said)]

    def _begun(self, kind: str) -> list[bytes]:
        """What begins an item, unless one of this kind is written."""
        if self._written is not None and self._items[-1]["type"] == kind:
            return []
        frames = self._done()
        item = self._new(kind, {"role": "assistant"} if kind == "message" else {"summary": []})
        self._written, self._written_scores = "", []
        frames.append(self._event("response.output_item.added", output_index=self._index, item=item))
        return [*frames, self._event("response.content_part.added", **self._place, part=self._part)]

    def _delta(self, said: SpokenText) -> bytes:
        self._written = (self._written or "") + said.text
        scores = self._tell()
        if said.thought:
            return self._event("response.reasoning_text.delta", **self._place, delta=said.text)
        self._written_scores += scores
        return self._event("response.output_text.delta", **self._place, delta=said.text, logprobs=scores)

    def _tell(self) -> list[Json]:
        """The scores that were not told yet."""
        told, self._untold = self._untold, []
        return told

    def _done(self) -> list[bytes]:
        """What ends the item that is written, if one is."""
        if self._written is None:
            return []
        item, part, place = self._items[-1], self._part, self._place
        kind = "output_text" if item["type"] == "message" else "reasoning_text"
        more: Json = {"logprobs": self._written_scores} if kind == "output_text" else {}
        item |= {"status": "incomplete" if self._last == "length" else "completed", "content": [part]}
        frames = [
            self._event(f"response.{kind}.done", **place, text=self._written, **more),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=self._index, item=item),
        ]
        self._written = None
        return frames

    def _call_begun(self, call: CallBegun) -> list[bytes]:
        frames = self._done()
        named = {"call_id": call_id(self.head.id, 0, call.index), **self._named(call.name)}
        item = self._new("function_call", {**named, "arguments": ""})
        self._arguments = ""
        return [*frames, self._event("response.output_item.added", output_index=self._index, item=item)]

    def _named(self, name: str) -> Json:
        """The function's own name, and its namespace if it has one."""
        reply = self.head.reply
        namespace = dict(zip(reply.tools, reply.namespaces, strict=False)).get(name, "")
        own: Json = {"name": bare_name(namespace, name)}
        return own | {"namespace": namespace} if namespace else own

    def _call_ended(self, status: str) -> list[bytes]:
        self._tell()
        item, place = self._items[-1], self._call_place
        item |= {"status": status, "arguments": self._arguments}
        whole = {"arguments": self._arguments, "name": item["name"]}
        return [
            self._event("response.function_call_arguments.done", **place, **whole),
            self._event("response.output_item.done", output_index=self._index, item=item),
        ]

    def _new(self, kind: str, more: Json) -> Json:
        number = len(self._items)
        identity = f"{kind}-{number}-{self.head.id.partition('-')[2]}"
        item: Json = {"id": identity, "type": kind, "status": "in_progress", **more}
        if kind != "function_call":
            item["content"] = []
        self._items.append(item)
        return item

    @property
    def _index(self) -> int:
        return len(self._items) - 1

    @property
    def _call_place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": self._index}

    @property
    def _place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": self._index, "content_index": 0}

    @property
    def _part(self) -> Json:
        text = self._written or ""
        if self._items[-1]["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._written_scores}

    # --- the rest

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(kind, {"type": kind, **fields, "sequence_number": number})

    def _ended(self, transcript: Transcript) -> Json:
        cut = self._last == "length"
        found = self._response("incomplete" if cut else "completed", self._items)
        if cut:
            found["incomplete_details"] = {"reason": "max_output_tokens"}
        ended = transcript.finished
        return found | self._usage(transcript.count, ended.cached_tokens if ended is not None else 0)

    def _response(self, status: str, output: list[Json]) -> Json:
        return {
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self.head.model,
            "output": output,
            "parallel_tool_calls": self.head.reply.several,
            "previous_response_id": None,
            "store": False,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
            **self._echo,
            "text": {"format": {"type": "text"}, **self._echo.get("text", {})},
        }

    def _usage(self, tokens: int, cached: int) -> Json:
        prompt = sum(self.head.prompt_tokens)
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        }
        return {"usage": usage}
