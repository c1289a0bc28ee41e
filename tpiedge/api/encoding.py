"""Text to token ids, without more memory than the context is worth.

A tokenizer takes some 500 bytes for every token, all of them at once: a text of a few hundred kilobytes takes a hundred
megabytes. So a text that is too long is found out in pieces, whose tokens are counted and forgotten.
"""

import math
from collections.abc import Sequence

from tpiedge.api.errors import PromptTooLong, refused
from tpiedge.api.service import Service
from tpiedge.errors import UserError
from tpiedge.model.tokenizer import Tokenizer

_CHARACTERS_PER_TOKEN = 64
"""A text with more characters than this per position cannot fit: it is refused before it is tokenized."""
_BYTES_PER_CHARACTER = 4
"""At most; a byte is as many tokens as its tokenizer's `growth` at most."""
_PIECE = 2048
_COUNTED_PIECE = 32_768
_COUNTED_CHARACTERS = 1 << 20
_SHORTEST_PIECE = 256
_USUAL_GROWTH = 32
"""Of a tokenizer that may make more of a byte, the pieces are shorter."""
_LOST_PER_CUT = 32
"""Tokens that the end of a piece may have cut in two, generously."""


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
        limit = service.max_sequence
        tokens = _least_tokens(text, service.tokenizer, limit)
        if tokens > limit:
            raise PromptTooLong(f"'{param}' has more than {limit} tokens", tokens, limit, param, text)
        return tuple(service.tokenizer.encode(text, add_special=add_special, parse_special=parse_special))
    except UserError as error:
        raise refused(str(error), param) from None


def count_tokens(text: str, service: Service) -> int:
    """Counts the tokens of a text of any length, in pieces that end before a space. Of a text that is longer than
    `_COUNTED_CHARACTERS` the rest is taken to have as many for a character."""
    if service.tokenizer is None:
        return 0
    piece = _grown(_COUNTED_PIECE, service.tokenizer)
    counted = text[:_COUNTED_CHARACTERS].encode(errors="replace").decode()
    count = start = 0
    while start < len(counted):
        end = start + piece
        if end < len(counted):
            end = max(counted.rfind(" ", start + 1, end), counted.rfind("\n", start + 1, end))
            end = end if end > start else start + piece
        count += len(service.tokenizer.encode(counted[start:end], add_special=False))
        start = end
    return math.ceil(count * len(text) / max(1, len(counted)))


def _least_tokens(text: str, tokenizer: Tokenizer, limit: int) -> int:
    """Counts tokens that the text certainly has, until they are more than `limit`. A text of fewer has not many more
    tokens than that."""
    if len(text) * _BYTES_PER_CHARACTER * tokenizer.growth <= limit or not _is_valid(text):
        return 0
    piece = _grown(_PIECE, tokenizer)
    count = 0
    for start in range(0, len(text), piece):
        count += len(tokenizer.encode(text[start : start + piece], add_special=False)) - _LOST_PER_CUT
        if count > limit:
            break
    return count


def _grown(piece: int, tokenizer: Tokenizer) -> int:
    """The characters of a piece that a tokenizer makes no more of than usual."""
    return max(_SHORTEST_PIECE, int(piece * min(1.0, _USUAL_GROWTH / tokenizer.growth)))


def _is_valid(text: str) -> bool:
    """Whether it is Unicode; if it is not, the tokenizer says where, before it does anything else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
