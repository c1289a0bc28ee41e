"""The prompt as the beginning of an answer, with its scores: what `echo` asks for. No input or output here."""

from tpiedge.model.detokenizer import Detokenizer
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import PromptScores, Token

__all__ = ["PromptEcho"]


class PromptEcho:
    """Collects the scores of a prompt, where they are wanted, which all come before the answer."""

    def __init__(self, text: str, ids: tuple[int, ...]) -> None:
        """`text`: what stands for `ids`."""
        self.text = text
        self.ids = ids
        self._logprobs: list[tuple[tuple[int, float], ...]] = [()]  # nothing comes before the first token

    def take(self, scores: PromptScores) -> None:
        """The next part."""
        each = len(scores.likeliest) // len(scores.scores)
        for number, score in enumerate(scores.scores):
            own = (self.ids[scores.first + number], score)
            self._logprobs.append((*scores.likeliest[number * each : (number + 1) * each], own))

    @property
    def tokens(self) -> tuple[Token, ...]:
        """As those of answers: the likeliest first, and the token's own score at the end; without any score for the
        first one."""
        scored = self._logprobs if len(self._logprobs) == len(self.ids) else [()] * len(self.ids)
        return tuple(
            Token(0, "", index, token, logprobs)
            for index, (token, logprobs) in enumerate(zip(self.ids, scored, strict=True))
        )

    def offsets(self, tokenizer: Tokenizer | None) -> tuple[int, ...]:
        """Characters of `text` before each token."""
        if tokenizer is None:
            return (0,) * len(self.ids)
        writer, begins, whole = Detokenizer(tokenizer, skip_special=False), [], ""
        for token in self.ids:
            begins.append(len(whole))
            whole += writer.push(token)
        whole += writer.finish()
        # Tokens that the tokenizer itself put before the text, and a space, do not stand in it.
        added = len(whole) - len(self.text) if whole.endswith(self.text) else 0
        return tuple(min(max(0, begin - added), len(self.text)) for begin in begins)
