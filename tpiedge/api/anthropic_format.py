"""Answers as Anthropic's API has them: messages of blocks, whole or in events that have names."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tpiedge.api.errors import ApiError, anthropic_error
from tpiedge.api.formats import AnswerHead
from tpiedge.api.frames import EVENT_STREAM, Json, comment, named_event
from tpiedge.api.spoken import SpokenChoice, ToolCall, call_id
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.speech import Said, SpokenText

_PING: Final = named_event("ping", {"type": "ping"})
#: Why an answer ends that need not have said anything: one of no tokens only reads its prompt.
_CUT: Final = "length"
_REASONS: Final = {_CUT: "max_tokens", "tool_calls": "tool_use"}


class AnthropicFormat:
    """An AnswerFormat of one choice. Neighbouring texts of a kind are one block."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._spoken = SpokenChoice(head.reply.speech)
        self._ending = ""
        #: The number of the block that is written, and its kind; "" while there is none.
        self._index = -1
        self._open = ""

    def opening(self) -> Sequence[bytes]:
        usage = {"input_tokens": self._input, "output_tokens": 0}
        message = self._message([], {"stop_reason": None, "stop_sequence": None}, usage)
        return (_event("message_start", message=message),)

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        said = self._spoken.take(piece)
        self._ending = self._spoken.ending(piece) or ""
        frames = [frame for one in said for frame in self._parts(one)]
        if piece.last is not None:
            if self._index < 0 and piece.last != _CUT:
                frames += self._begun("text", _text(""))
            frames += self._closed()
        return frames

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        (only,) = transcripts
        return (
            _event("message_delta", delta=_end(self._ending, only), usage=self._usage(only)),
            _event("message_stop"),
        )

    def alive(self, why: str) -> bytes:
        return comment(why) + _PING if why else _PING

    def broken(self, error: ApiError, _tokens: int) -> bytes:
        return named_event("error", anthropic_error(error))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        (parts,), (only,) = pieces, transcripts
        blocks: list[Json] = []
        for piece in parts:
            for said in self._spoken.take_objects(piece):
                self._add(blocks, said)
        ending = self._spoken.ending(parts[-1]) or ""
        if not blocks and ending != _CUT:
            blocks.append(_text(""))
        return self._message(blocks, _end(ending, only), self._usage(only))

    def failure(self, error: ApiError, _tokens: int) -> Json:
        return anthropic_error(error)

    # --- blocks

    def _parts(self, said: Said) -> list[bytes]:
        match said:
            case CallBegun(index=index, name=name):
                return self._begun("tool_use", self._use(index, name, {}))
            case CallArguments(text=text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnded():
                return self._closed()
            case SpokenText(text=text, thought=True):
                begun = self._begun("thinking", _thoughts(""))
                return [*begun, self._delta({"type": "thinking_delta", "thinking": text})]
            case SpokenText(text=text):
                begun = self._begun("text", _text(""))
                return [*begun, self._delta({"type": "text_delta", "text": text})]

    def _begun(self, kind: str, block: Json) -> list[bytes]:
        """What begins the block, unless one of this kind is written."""
        if self._open == kind:
            return []
        before = self._closed()
        self._open, self._index = kind, self._index + 1
        return [*before, _event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _closed(self) -> list[bytes]:
        kind, self._open = self._open, ""
        return [_event("content_block_stop", index=self._index)] if kind else []

    def _add(self, blocks: list[Json], said: SpokenText | ToolCall) -> None:
        if isinstance(said, ToolCall):
            blocks.append(self._use(said.index, said.name, json.loads(said.arguments)))
            return
        block = _thoughts(said.text) if said.thought else _text(said.text)
        last, key = blocks[-1] if blocks else {}, "thinking" if said.thought else "text"
        if last.get("type") == block["type"]:
            last[key] = f"{last[key]}{said.text}"
        else:
            blocks.append(block)

    def _use(self, index: int, name: str, arguments: object) -> Json:
        return {"type": "tool_use", "id": call_id(self._head.id, 0, index), "name": name, "input": arguments}

    # --- the rest

    @property
    def _input(self) -> int:
        return sum(self._head.prompt_tokens)

    def _usage(self, transcript: Transcript) -> Json:
        """Tokens that were kept from earlier requests count apart, as theirs do; where the answer has no end of its
        own, as at a stop string, nobody knows them."""
        ended = transcript.finished
        usage: Json = {"cache_creation_input_tokens": 0, "output_tokens": transcript.count}
        if ended is None:
            return usage | {"input_tokens": self._input}
        cached = ended.cached_tokens
        return usage | {"input_tokens": self._input - cached, "cache_read_input_tokens": cached}

    def _message(self, content: list[Json], ending: Json, usage: Mapping[str, object]) -> Json:
        head = {"id": self._head.id, "type": "message", "role": "assistant", "model": self._head.model}
        return {**head, "content": content, **ending, "usage": usage}


def _event(kind: str, **fields: object) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _thoughts(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _end(ending: str, transcript: Transcript) -> Json:
    reason = "stop_sequence" if transcript.stop else _REASONS.get(ending, "end_turn")
    return {"stop_reason": reason, "stop_sequence": transcript.stop or None}
