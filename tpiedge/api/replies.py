"""Pieces of an answer as the JSON objects of OpenAI's API, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.api.schema import Reply
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Token

__all__ = ["ReplyFormatter"]

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class ReplyFormatter:
    """Everything about an answer except the answer."""

    id: str
    created: int
    model: str
    reply: Reply
    prompt_tokens: int
    tokenizer: Tokenizer | None

    def opening(self) -> Json | None:
        """The first chunk of a streamed chat: who speaks. None for a completion."""
        if not self.reply.chat:
            return None
        return self._chunk([self._choice({"delta": {"role": "assistant", "content": ""}}, None)])

    def chunk(self, piece: TextPiece) -> Json:
        """A chunk of a stream."""
        shown: Json = {"delta": {"content": piece.text} if piece.text else {}}
        return self._chunk([self._choice(shown if self.reply.chat else {"text": piece.text}, piece)])

    def closing(self, transcript: Transcript) -> Json:
        """The chunk with the usage, which has no choice."""
        return self._chunk([]) | {"usage": self._usage(transcript)}

    def whole(self, pieces: Sequence[TextPiece], transcript: Transcript) -> Json:
        """The answer that is not streamed, which consists of `pieces`."""
        text = "".join(piece.text for piece in pieces)
        all_tokens = tuple(token for piece in pieces for token in piece.tokens)
        offsets = tuple(offset for piece in pieces for offset in piece.offsets)
        shown: Json = {"text": text}
        if self.reply.chat:
            shown = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = self._choice(shown, TextPiece(text, all_tokens, offsets, pieces[-1].last))
        kind = "chat.completion" if self.reply.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": self._usage(transcript)}

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._object("chat.completion.chunk" if self.reply.chat else "text_completion", choices)
        return chunk | {"usage": None} if self.reply.include_usage else chunk

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, shown: Json, piece: TextPiece | None) -> Json:
        choice: Json = {"index": 0, **shown, "logprobs": None}
        choice["finish_reason"] = piece.last if piece else None
        if piece is not None and self.reply.logprobs is not None:
            scores = self._chat_scores if self.reply.chat else self._text_scores
            choice["logprobs"] = scores(piece)
        if piece is not None and self.reply.token_ids:
            choice["token_ids"] = [token.token for token in piece.tokens]
        return choice

    def _usage(self, transcript: Transcript) -> Json:
        """What the answer took; without rank 0's last word, which a stop string does not wait for, only what is known
        here."""
        tokens, finished = transcript.count, transcript.finished
        total = self.prompt_tokens + tokens
        usage: Json = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": total,
        }
        # No steps are said of tokens in which other epochs had a part.
        if finished is not None and (finished.steps or not finished.tokens):
            usage["prompt_tokens_details"] = {"cached_tokens": finished.cached_tokens}
            if finished.steps:
                usage["tokens_per_step"] = round(finished.tokens / finished.steps, 2)
        if transcript.pauses:
            usage["pauses"] = {"count": transcript.pauses, "seconds": round(transcript.paused_s, 3)}
        return usage

    def _chat_scores(self, piece: TextPiece) -> Json:
        content = []
        for token in piece.tokens:
            top = [self._scored(*pair) for pair in token.logprobs[: self.reply.logprobs or 0]]
            content.append(self._scored(token.token, _own(token)) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _text_scores(self, piece: TextPiece) -> Json:
        return {
            "tokens": [self._text(token.token) for token in piece.tokens],
            "token_logprobs": [_own(token) for token in piece.tokens],
            "top_logprobs": [self._top(token) for token in piece.tokens] if self.reply.logprobs else None,
            "text_offset": list(piece.offsets),
        }

    def _top(self, token: Token) -> dict[str, float]:
        """The most probable of those that are written alike, as a letter and the token of its byte are, stands."""
        found: dict[str, float] = {}
        for other, score in token.logprobs[: self.reply.logprobs or 0]:
            found.setdefault(self._text(other), score)
        return found

    def _scored(self, token: int, score: float) -> Json:
        data = self._bytes(token)
        return {
            "token": _spelled(token, data),
            "logprob": score,
            "bytes": None if data is None else list(data),
        }

    def _text(self, token: int) -> str:
        return _spelled(token, self._bytes(token))

    def _bytes(self, token: int) -> bytes | None:
        return self.tokenizer.token_bytes(token) if self.tokenizer else None


def _spelled(token: int, data: bytes | None) -> str:
    """The token's text with its leading space. A part of a character is written as OpenAI does: bytes:\\xe4\\xbd."""
    if data is None:
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _own(token: Token) -> float:
    """The log probability of the token that was drawn; it is always among those that came."""
    return next((score for other, score in token.logprobs if other == token.token), -9999.0)
