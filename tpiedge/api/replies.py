"""Pieces of an answer as the JSON objects of OpenAI's API, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.api.schema import Reply
from tpiedge.api.transcript import Piece
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Token

__all__ = ["Envelope"]

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Envelope:
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

    def chunk(self, piece: Piece, offset: int) -> Json:
        """A chunk of a stream; `offset` is the number of characters before it."""
        shown: Json = {"delta": {"content": piece.text} if piece.text else {}}
        return self._chunk([self._choice(shown if self.reply.chat else {"text": piece.text}, piece, offset)])

    def closing(self, tokens: int) -> Json:
        """The chunk with the usage, which has no choice."""
        return self._chunk([]) | {"usage": self._usage(tokens)}

    def whole(self, pieces: Sequence[Piece], tokens: int) -> Json:
        """The answer that is not streamed."""
        text = "".join(piece.text for piece in pieces)
        all_tokens = tuple(token for piece in pieces for token in piece.tokens)
        shown: Json = {"text": text}
        if self.reply.chat:
            shown = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = self._choice(shown, Piece(text, all_tokens, pieces[-1].last))
        kind = "chat.completion" if self.reply.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": self._usage(tokens)}

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

    def _choice(self, shown: Json, piece: Piece | None, offset: int = 0) -> Json:
        choice: Json = {"index": 0, **shown, "logprobs": None}
        choice["finish_reason"] = piece.last if piece else None
        if piece is not None and self.reply.logprobs is not None:
            scores = self._chat_scores if self.reply.chat else self._text_scores
            choice["logprobs"] = scores(piece.tokens, offset)
        if piece is not None and self.reply.token_ids:
            choice["token_ids"] = [token.token for token in piece.tokens]
        return choice

    def _usage(self, tokens: int) -> Json:
        total = self.prompt_tokens + tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens, "total_tokens": total}

    def _chat_scores(self, tokens: Sequence[Token], _offset: int) -> Json:
        content = []
        for token in tokens:
            top = [self._scored(*pair) for pair in token.logprobs[: self.reply.logprobs or 0]]
            content.append(self._scored(token.token, _own(token)) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _text_scores(self, tokens: Sequence[Token], offset: int) -> Json:
        texts = [self._text(token.token) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        top = [
            {self._text(other): score for other, score in token.logprobs[: self.reply.logprobs or 0]}
            for token in tokens
        ]
        return {
            "tokens": texts,
            "token_logprobs": [_own(token) for token in tokens],
            "top_logprobs": top if self.reply.logprobs else None,
            "text_offset": offsets,
        }

    def _scored(self, token: int, score: float) -> Json:
        text = self._text(token)
        # Part of a character has no text of its own, hence no bytes that could be told.
        data = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
        return {"token": text, "logprob": score, "bytes": data}

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special=False) if self.tokenizer else f"token_id:{token}"


def _own(token: Token) -> float:
    """The log probability of the token that was drawn; it is always among those that came."""
    return next((score for other, score in token.logprobs if other == token.token), -9999.0)
