"""Text to token ids, for what fits the context."""

import math
from collections.abc import Sequence

from tpiedge.api.errors import PromptTooLong, refused
from tpiedge.api.service import Service
from tpiedge.errors import UserError
from tpiedge.model.tokenizer import TooManyTokens

_CHARACTERS_PER_TOKEN = 64
"""A text with more characters than this per position cannot fit: it is refused before it is tokenized."""
_COUNTED_CHARACTERS = 1 << 20


def check_characters(param: str, texts: Sequence[str], service: Service) -> None:
    """Raises ApiError for a text that cannot fit, whatever it says: all of these together."""
    characters = sum(map(len, texts))
    if characters > service.max_sequence * _CHARACTERS_PER_TOKEN:
        tokens = math.ceil(characters / _CHARACTERS_PER_TOKEN)
        size = f"'{param}' has {characters} characters"
        raise PromptTooLong(size, tokens, service.max_sequence, param, "".join(texts))


def encode(
    text: str, service: Service, param: str, *, add_special: bool, parse_special: bool = True
) -> tuple[int, ...]:
    """The token ids of `text`, which is the value of `param`, as of Tokenizer.encode. Raises ApiError."""
    if service.tokenizer is None:
        raise refused("the model has no tokenizer: send token ids to /v1/completions", param)
    try:
        ids = service.tokenizer.encode(
            text, add_special=add_special, parse_special=parse_special, most=service.max_sequence
        )
        return tuple(ids)
    except TooManyTokens as error:
        limit = service.max_sequence
        why = f"'{param}' has more than {limit} tokens"
        raise PromptTooLong(why, error.tokens, limit, param, text) from None
    except UserError as error:
        raise refused(str(error), param) from None


def count_tokens(text: str, service: Service) -> int:
    """Counts the tokens of a text of any length. Of a text that is longer than `_COUNTED_CHARACTERS` the rest is taken
    to have as many for a character."""
    if service.tokenizer is None:
        return 0
    count = service.tokenizer.count(text[:_COUNTED_CHARACTERS])
    return math.ceil(count * max(1.0, len(text) / _COUNTED_CHARACTERS))
