"""Token ids to text, one at a time, without ever showing half a character.

Laws:

1. The pieces that `push` and `finish` return, joined, are the tokenizer's decoding of all ids at once.
2. A piece never ends within a character: bytes of an unfinished one are held back.

A tokenizer decodes a token differently at the start of a text (Llama's drops a space there), so new tokens
are decoded together with those of the piece before them, and the difference is the new piece. A run of
byte-fallback tokens (<0xE4><0xBD><0xA0>) is decoded as a whole, valid or not, hence held back until it ends.
"""

import re

from tpiedge.model.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: Ids of an unfinished character at most, and how many wait before it is asked which of them are none's.
_CHARACTER = 3
_MOST_PENDING = 16
_BYTE_TOKEN = re.compile(r"<0x..>", re.DOTALL)


class Detokenizer:
    """The text of one growing sequence of ids. Special tokens are left out unless `skip_special` is False, or they are
    `shown`."""

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, shown: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown if skip_special else frozenset()
        self._context: list[int] = []  # the ids of the last piece
        self._pending: list[int] = []  # ids since then

    def push(self, token_id: int) -> str:
        """Add one id; returns the text that is now certain, often "" or more than one character."""
        token = self._tokenizer.token(token_id)
        if token is None or token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        before, after = self._decode(self._context), self._decode(self._context + self._pending)
        # U+FFFD at the end may be a character whose other bytes are still to come.
        if after.endswith(_REPLACEMENT) or len(after) <= len(before) or not after.startswith(before):
            return self._overdue(before) if len(self._pending) > _MOST_PENDING else ""
        self._context, self._pending = self._pending, []
        return after[len(before) :]

    def _overdue(self, before: str) -> str:
        """The text of all but the last ids, which alone can still become a character: or ids of bytes without end
        would be decoded all at once, again and again."""
        certain = self._decode(self._context + self._pending[:-_CHARACTER])
        if not certain.startswith(before):
            return ""
        self._context, self._pending = self._pending[:-_CHARACTER], self._pending[-_CHARACTER:]
        return certain[len(before) :]

    def finish(self) -> str:
        """The rest, with U+FFFD for characters that never became whole. The object is then as new."""
        before, after = self._decode(self._context), self._decode(self._context + self._pending)
        self._context, self._pending = [], []
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False)
