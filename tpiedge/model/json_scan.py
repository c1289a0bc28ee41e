"""Follows a JSON value while it is being written. Pure.

Laws:
1. What is found does not depend on how the text is cut into pieces.
2. A value that was followed to its end is read by `json.loads`, too, and what that makes of it can be written again:
   nothing of it is too long or too deep, and no number more than a double can hold.
"""

import math
import re
from typing import Final

_SPACES: Final = re.compile(r"[ \t\r\n]+")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_NUMBER_PART: Final = re.compile(r"[-+.0-9eE]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: Final = ("true", "false", "null")
_CLOSERS: Final = {"{": "}", "[": "]"}
#: Python reads no integer of more than 4,300 digits, and nothing nested a thousand deep.
_MAX_NUMBER: Final = 1000
_MAX_DEPTH: Final = 128


class JsonScan:
    """Of one value, in the strict grammar of RFC 8259."""

    def __init__(self) -> None:
        self.whole = False
        """Whether the value has ended. Of a number that is known with the character after it, or by `finish`."""
        self.broken = False
        """Whether what came next is no part of a value."""
        #: What may come: "value", "item" (or the list's end), "field" (or the object's end), "key", ":", "more" (a
        #: comma, or an end), the rest of a "string", of a "name" or of a "number".
        self._expected = "value"
        self._open: list[str] = []
        self._number = ""

    def take(self, text: str) -> int:
        """How many characters of the text, which goes on after those taken before, are the value's. Less than all where
        the value is whole or broken, or where an escape or a word has only begun."""
        at = 0
        while at < len(text) and not (self.whole or self.broken):
            count = self._part(text, at)
            if count is None:
                break
            at += count
        return at

    def finish(self) -> bool:
        """Whether the value is whole where nothing follows."""
        if self._expected == "number":
            self._end_number()
        return self.whole

    def _part(self, text: str, at: int) -> int | None:
        """Of the next part of the value; None where that is not known yet."""
        if self._expected in ("string", "name"):
            return self._in_string(text, at)
        if self._expected == "number":
            return self._in_number(text, at)
        spaces = _SPACES.match(text, at)
        if spaces is not None:
            return spaces.end() - at
        mark = text[at]
        if self._expected == ":" and mark == ":":
            self._expected = "value"
        elif self._expected == "more" and mark == ",":
            self._expected = "key" if self._open[-1] == "{" else "value"
        elif self._expected in ("more", "item", "field") and mark == _CLOSERS[self._open[-1]]:
            self._open.pop()
            self._end_value()
        elif self._expected in ("key", "field") and mark == '"':
            self._expected = "name"
        elif self._expected in ("value", "item"):
            return self._begin_value(text, at, mark)
        else:
            self.broken = True
            return 0
        return 1

    def _begin_value(self, text: str, at: int, mark: str) -> int | None:
        if mark == '"':
            self._expected = "string"
            return 1
        if mark in _CLOSERS and len(self._open) < _MAX_DEPTH:
            self._open.append(mark)
            self._expected = "field" if mark == "{" else "item"
            return 1
        if mark == "-" or mark.isdecimal():
            self._expected, self._number = "number", ""
            return 0
        for word in _WORDS:
            if text.startswith(word, at):
                self._end_value()
                return len(word)
            if word.startswith(text[at:]):
                return None
        self.broken = True
        return 0

    def _in_string(self, text: str, at: int) -> int | None:
        if text[at] == '"':
            if self._expected == "name":
                self._expected = ":"
            else:
                self._end_value()
            return 1
        found = _PLAIN.match(text, at) or _ESCAPE.match(text, at)
        if found is not None:
            return found.end() - at
        begun = _ESCAPE_BEGUN.match(text, at)
        if begun is not None and begun.end() == len(text):
            return None
        self.broken = True
        return 0

    def _in_number(self, text: str, at: int) -> int:
        found = _NUMBER_PART.match(text, at)
        if found is None:
            self._end_number()
            return 0
        room = _MAX_NUMBER - len(self._number)
        part = found.group()[:room]
        self._number += part
        self.broken = len(part) < len(found.group())
        return len(part)

    def _end_number(self) -> None:
        if _NUMBER.fullmatch(self._number) and math.isfinite(float(self._number)):
            self._end_value()
        else:
            self.broken = True

    def _end_value(self) -> None:
        self._expected = "more"
        self.whole = not self._open
