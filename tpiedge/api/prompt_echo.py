"""The prompt as the beginning of an answer, with its scores: what `echo` asks for. No input or output here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Self

from tpiedge.model.tokenizer import Detokenizer, Tokenizer
from tpiedge.wire.control import PromptScores, Token
from tpiedge.wire.fields import MaxLength, Packed
from tpiedge.wire.limits import MAX_PROMPT_TOKENS

_PART: Final = 64
"""Tokens that are told at a time: with twenty scores each they are a millisecond's work."""
_MAX_TEXT: Final = 2**31 - 1
"""Characters of a prompt, which the size of a request's body bounds long before."""

EchoPart = tuple[str, tuple[Token, ...], tuple[int, ...]]
"""A text, its tokens, and where each of them begins in the whole text."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """What stands for a prompt's tokens, and how many characters of it before each of them."""

    text: Annotated[str, MaxLength(_MAX_TEXT)]
    offsets: Annotated[tuple[int, ...], Packed("<I", MAX_PROMPT_TOKENS)]

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], tokenizer: Tokenizer | None) -> Self:
        """Of the tokens `ids`. Takes a second for 32,000: for a thread."""
        if tokenizer is None:
            return cls(text, (0,) * len(ids))
        writer, begins, parts, length = Detokenizer(tokenizer, skip_special=False), [], [], 0
        for token in ids:
            begins.append(length)
            parts.append(writer.push(token))
            length += len(parts[-1])
        whole = "".join(parts) + writer.finish()
        # Tokens that the tokenizer itself put before the text, and a space, do not stand in it.
        added = len(whole) - len(text) if whole.endswith(text) else 0
        return cls(text, tuple(min(max(0, begin - added), len(text)) for begin in begins))


class PromptEcho:
    """Collects the scores of a prompt, where they are wanted, which all come before the answer."""

    def __init__(self, prompt: EchoedPrompt, ids: tuple[int, ...]) -> None:
        """`ids`: the prompt's tokens."""
        self.prompt = prompt
        self.ids = ids
        self._logprobs: list[tuple[tuple[int, float], ...]] = [()]  # nothing comes before the first token

    def take(self, scores: PromptScores) -> None:
        """The next part."""
        each = len(scores.likeliest) // len(scores.scores)
        for number, score in enumerate(scores.scores):
            own = (self.ids[scores.first + number], score)
            self._logprobs.append((*scores.likeliest[number * each : (number + 1) * each], own))

    def parts(self) -> Iterator[EchoPart]:
        """All of it. Tokens as those of answers: the likeliest first, and the token's own score at the end; without any
        score for the first one."""
        text, ids, offsets = self.prompt.text, self.ids, self.prompt.offsets
        scored = self._logprobs if len(self._logprobs) == len(ids) else [()] * len(ids)
        for first in range(0, len(ids), _PART):
            numbers = range(first, min(first + _PART, len(ids)))
            begin = offsets[first] if first else 0
            end = offsets[numbers.stop] if numbers.stop < len(ids) else len(text)
            tokens = tuple(Token(0, "", number, ids[number], scored[number]) for number in numbers)
            yield text[begin:end], tokens, offsets[first : numbers.stop]
