"""Token ids to text, one at a time, without ever showing half a character.

Laws:

1. The pieces that `push` and `finish` return, joined, are the tokenizer's decoding of all ids at once, save where a run
   of bytes is broken: characters that were whole before stay what they are, though the tokenizer has U+FFFD for them.
2. A piece never ends within a character: bytes of an unfinished one are held back, and nothing else for long.
3. After other ids, the pieces are what the tokenizer's decoding of all is longer than that of the ids before, without
   the character that these leave unfinished.

A tokenizer decodes a token differently at the start of a text (Llama's drops a space there), so new tokens are decoded
together with those of the piece before them, and the difference is the new piece. A run of byte-fallback tokens
(<0xE4><0xBD><0xA0>) is decoded as a whole: one that is no UTF-8 is U+FFFD for every byte. So a run that broke is
decoded without the characters before it, which are shown already.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from tpiedge.model.tokenizer import Tokenizer, fallback_byte

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CHARACTER: Final = 3
"""Ids of an unfinished character at most."""
_MOST_PENDING: Final = 16
"""So many ids wait before it is asked which of them are no character's."""
_CONTEXT: Final = 32
"""Ids of a text before that are looked at: more than a character has, or a text's beginning that is written in another
way than the same in the middle."""
_CONTINUING: Final = range(0x80, 0xC0)


class Detokenizer:
    """The text of one growing sequence of ids. Special tokens are left out unless `skip_special` is False, or they are
    `shown`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        shown: frozenset[int] = frozenset(),
        after: Sequence[int] = (),
    ) -> None:
        """`after`: the ids that the text goes on after; without any it begins."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown if skip_special else frozenset()
        before = [token for token in after if self._token(token) is not None][-_CONTEXT:]
        while before and fallback_byte(self._token(before[0])) in _CONTINUING:  # the rest of a character
            before.pop(0)
        begun = unfinished(tokenizer, before)
        self._context = before[: len(before) - begun]
        """The ids of the last piece."""
        self._pending = before[len(before) - begun :]
        """The ids since then."""
        self._broken = False
        """Whether the last id is of a run of bytes that is no UTF-8."""

    def push(self, token_id: int) -> str:
        """Add one id; returns the text that is now certain, often "" or more than one character."""
        token = self._token(token_id)
        if token is None:
            return ""
        self._pending.append(token_id)
        if fallback_byte(token) is None:
            self._broken = False
            return self._certain()
        if self._broken:
            text, self._pending = self._new_text(), []
            return text
        state = _state(self._bytes(reversed(self._pending))[::-1])
        if state == "begun":
            return ""
        text = self._shown()
        self._broken = state == "broken"
        return text

    def finish(self) -> str:
        """The rest, with U+FFFD for characters that never became whole. The object is then as new."""
        text = self._new_text()
        self._context, self._pending, self._broken = [], [], False
        return text

    def _certain(self) -> str:
        """The text with the last id, which is no byte, if that is all of it."""
        text = self._new_text()
        # U+FFFD at the end may be a character whose other bytes are still to come.
        if text and not text.endswith(_REPLACEMENT):
            self._context, self._pending = self._pending, []
            return text
        return self._overdue() if len(self._pending) > _MOST_PENDING else ""

    def _shown(self) -> str:
        text = self._new_text()
        self._context, self._pending = self._pending, []
        return text

    def _overdue(self) -> str:
        """The text of all but the last ids, which alone can still become a character: or ids of bytes without end
        would be decoded all at once, again and again."""
        last, self._pending = self._pending[-_CHARACTER:], self._pending[:-_CHARACTER]
        text = self._shown()
        self._pending = last
        return text

    def _new_text(self) -> str:
        """What the ids that are pending add."""
        run = self._bytes(self._pending)
        if run and self._bytes(self._context[-1:]) and not self._broken and _state(run) != "whole":
            # With the bytes before it, which are whole, it would be one run that is not.
            return self._decode(self._pending)
        before, after = self._decode(self._context), self._decode(self._context + self._pending)
        return after[len(before) :] if after.startswith(before) else ""

    def _bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the ids begin with."""
        found = bytearray()
        for token_id in ids:
            byte = fallback_byte(self._token(token_id))
            if byte is None:
                break
            found.append(byte)
        return bytes(found)

    def _token(self, token_id: int) -> str | None:
        """How the vocabulary writes it; None where it has no text."""
        return None if token_id in self._skipped else self._tokenizer.token(token_id)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False)


def unfinished(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Counts the last ids, which have parts of a character that does not end with them."""
    data = b""
    for count, token_id in enumerate(reversed(ids[-_CHARACTER:]), start=1):
        data = (tokenizer.token_bytes(token_id) or b"") + data
        match _state(data):
            case "begun":
                return count
            case "whole":
                return 0
    return 0


def _state(data: bytes) -> Literal["whole", "begun", "broken"]:
    """Whether it is UTF-8, the beginning of it, or neither."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return "begun" if error.end == len(data) and error.reason == "unexpected end of data" else "broken"
    return "whole"
