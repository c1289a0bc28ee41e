"""Answers as Ollama's API has them: whole, or as lines of JSON."""

import json
import time
from collections.abc import Sequence

from tpiedge.api.embedding_format import VectorFormat, unit_vector
from tpiedge.api.errors import ApiError, ollama_error
from tpiedge.api.formats import AnswerHead
from tpiedge.api.frames import JSON_LINES, Json, json_bytes, json_line
from tpiedge.api.spoken import SpokenChoice, ToolCall, call_id
from tpiedge.api.token_scores import TokenScores
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.speech import SpokenText


class OllamaFormat:
    """An AnswerFormat of one choice, of a chat or of a text."""

    stream_type = JSON_LINES

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._chat = head.reply.format == "ollama-chat"
        self._spoken = SpokenChoice(head.reply.speech)
        self._scores = TokenScores(head.tokenizer, head.reply.logprobs or 0)
        self._untold: list[Json] = []
        """Scores of tokens whose text is not shown yet."""
        self._begun_s = time.monotonic()
        self._last = ""

    def opening(self) -> Sequence[bytes]:
        return ()

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        self._last = piece.last or ""
        self._hear(piece)
        return [
            json_line(self._shown([said]) | self._told() | {"done": False})
            for said in self._spoken.take_objects(piece)
        ]

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        return (json_line(self._shown([]) | self._told() | self._end(self._last, transcripts[0])),)

    def alive(self, _why: str) -> bytes:
        """A line that says nothing: an empty one is an error to their clients."""
        return json_line(self._shown([]) | {"done": False})

    def broken(self, error: ApiError, _tokens: int) -> bytes:
        return json_line(ollama_error(error))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        (parts,), (only,) = pieces, transcripts
        for piece in parts:
            self._hear(piece)
        said = [one for piece in parts for one in self._spoken.take_objects(piece)]
        return self._shown(said) | self._told() | self._end(parts[-1].last or "", only)

    def failure(self, error: ApiError, _tokens: int) -> Json:
        return ollama_error(error)

    def _shown(self, said: Sequence[SpokenText | ToolCall]) -> Json:
        texts = [one for one in said if isinstance(one, SpokenText)]
        text = "".join(one.text for one in texts if not one.thought)
        thoughts = "".join(one.text for one in texts if one.thought)
        more: Json = {"thinking": thoughts} if thoughts else {}
        shown: Json = {"response": text, **more}
        if self._chat:
            calls = [self._call(one) for one in said if isinstance(one, ToolCall)]
            more |= {"tool_calls": calls} if calls else {}
            shown = {"message": {"role": "assistant", "content": text, **more}}
        return {"model": self._head.model, "created_at": moment(time.time()), **shown}

    def _hear(self, piece: TextPiece) -> None:
        if self._head.reply.logprobs is not None:
            self._untold += self._scores.told(piece.tokens)

    def _told(self) -> Json:
        """The scores that were not told yet, where they are wanted."""
        told, self._untold = self._untold, []
        return {"logprobs": told} if told else {}

    def _call(self, call: ToolCall) -> Json:
        function = {"name": call.name, "arguments": json.loads(call.arguments), "index": call.index}
        return {"id": call_id(self._head.id, 0, call.index), "function": function}

    def _end(self, last: str, transcript: Transcript) -> Json:
        """In nanoseconds: from the acceptance to the first token, which includes a wait for others, and from there."""
        now = time.monotonic()
        first = now if transcript.first_s is None else transcript.first_s
        return {
            "done": True,
            "done_reason": "length" if last == "length" else "stop",
            "total_duration": _ns(now - self._begun_s),
            "load_duration": 0,
            "prompt_eval_count": sum(self._head.prompt_tokens),
            "prompt_eval_duration": _ns(first - self._begun_s),
            "eval_count": transcript.count,
            "eval_duration": _ns(now - first),
        }


class OllamaEmbedFormat(VectorFormat):
    """Vectors of /api/embed, or the one of the older /api/embeddings, which is as long as it is."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._old = head.reply.format == "ollama-embeddings"
        self._begun_s = time.monotonic()

    def opening(self) -> Sequence[bytes]:
        return (b'{"embedding": ' if self._old else b'{"embeddings": [',)

    def entry(self, _number: int, values: Sequence[float]) -> object:
        return list(values) if self._old else unit_vector(values)

    def closing(self, _transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        if self._old:
            return (b"}",)
        rest = {
            "model": self.head.model,
            "total_duration": _ns(time.monotonic() - self._begun_s),
            "load_duration": 0,
            "prompt_eval_count": self.prompt_tokens,
        }
        return (b"], " + json_bytes(rest)[1:],)

    def failure(self, error: ApiError, _tokens: int) -> Json:
        return ollama_error(error)


def moment(at_s: float) -> str:
    """Seconds since 1970 as Ollama writes them."""
    whole, part = divmod(at_s, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int(part * 1e6):06d}Z"


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
