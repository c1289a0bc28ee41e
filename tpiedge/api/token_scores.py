"""Log probabilities of tokens as JSON, in the form that all APIs but the oldest share."""

from collections.abc import Sequence

from tpiedge.api.frames import Json
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Token


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
