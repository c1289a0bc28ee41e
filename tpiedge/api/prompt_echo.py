"""The prompt as the beginning of an answer, with its scores: what `echo` asks for. No input or output here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from tpiedge.model.detokenizer import Detokenizer
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import PromptScores, Token

__all__ = ["EchoPart", "EchoedPrompt", "PromptEcho"]

_PART: Final = 64
"""Tokens that are told at a time: with twenty scores each they are a millisecond's work."""

EchoPart = tuple[str, tuple[Token, ...], tuple[int, ...]]
"""A text, its tokens, and where each of them begins in the whole text."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """What stands for the tokens `ids`, and how many characters of it before each of them."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], tokenizer: Tokenizer | None) -> Self:
        """Takes a second for 32,000 tokens: for a thread."""
        if tokenizer is None:
            return cls(text, ids, (0,) * len(ids))
        writer, begins, parts, length = Detokenizer(tokenizer, skip_special=False), [], [], 0
        for token in ids:
            begins.append(length)
            parts.append(writer.push(token))
            length += len(parts[-1])
        whole = "".join(parts) + writer.finish()
        # Tokens that the tokenizer itself put before the text, and a space, do not stand in it.
        added = len(whole) - len(text) if whole.endswith(text) else 0
        return cls(text, ids, tuple(min(max(0, begin - added), len(text)) for begin in begins))


class PromptEcho:
    """Collects the scores of a prompt, where they are wanted, which all come before the answer."""

    def __init__(self, prompt: EchoedPrompt) -> None:
        self.prompt = prompt
        self._logprobs: list[tuple[tuple[int, float], ...]] = [()]  # nothing comes before the first token

    def take(self, scores: PromptScores) -> None:
        """The next part."""
        each = len(scores.likeliest) // len(scores.scores)
        for number, score in enumerate(scores.scores):
            own = (self.prompt.ids[scores.first + number], score)
            self._logprobs.append((*scores.likeliest[number * each : (number + 1) * each], own))

    def parts(self) -> Iterator[EchoPart]:
        """All of it. Tokens as those of answers: the likeliest first, and the token's own score at the end; without any
        score for the first one."""
        text, ids, offsets = self.prompt.text, self.prompt.ids, self.prompt.offsets
        scored = self._logprobs if len(self._logprobs) == len(ids) else [()] * len(ids)
        for first in range(0, len(ids), _PART):
            numbers = range(first, min(first + _PART, len(ids)))
            begin = offsets[first] if first else 0
            end = offsets[numbers.stop] if numbers.stop < len(ids) else len(text)
            tokens = tuple(Token(0, "", number, ids[number], scored[number]) for number in numbers)
            yield text[begin:end], tokens, offsets[first : numbers.stop]
