"""A text that comes in pieces, for readers that are generators: a yield waits for more of it; and JSON in it. Pure."""

import json
import math
import re
from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""Yields while it needs more of the text, or has to know that nothing more comes."""
SPACE: Final = " \t\r\n"
_IN_TEXT: Final = re.compile(r'["\\]')
_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_AFTER_WORD: Final = re.compile(r"[^-+.0-9a-zA-Z]")


class Mismatch(Exception):
    """The text does not go on as the reader wants it."""


class TextEnded(Mismatch):
    """The text ends before it shows whether it goes on so."""


class HeldText:
    """What has come of the text and was not taken. What is taken does not depend on how the text is cut."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        """Whether nothing more comes."""
        self.raw = ""
        """All that was taken since somebody emptied it."""

    def take(self, count: int) -> str:
        """The first characters."""
        taken, self.text = self.text[:count], self.text[count:]
        self.raw += taken
        return taken

    def more(self) -> Waiting[None]:
        """Waits. Raises TextEnded where nothing more comes."""
        if self.ended:
            raise TextEnded
        yield

    def spaces(self) -> Waiting[None]:
        """Takes white space, and waits for what follows it or for the end."""
        while True:
            self.take(len(self.text) - len(self.text.lstrip(SPACE)))
            if self.text or self.ended:
                return
            yield

    def one_of(self, *marks: str) -> Waiting[str]:
        """Takes the mark that the text goes on with; "" where it goes on with none."""
        while True:
            found = next((mark for mark in marks if self.text.startswith(mark)), "")
            if found:
                return self.take(len(found))
            if self.ended or not any(mark.startswith(self.text) for mark in marks):
                return ""
            yield

    def expect(self, *marks: str) -> Waiting[str]:
        """Takes the mark that comes after white space. Raises Mismatch where there is none."""
        yield from self.spaces()
        found = yield from self.one_of(*marks)
        if not found:
            raise self.mismatch(*marks)
        return found

    def mismatch(self, *marks: str) -> Mismatch:
        """Says why none of the marks comes next."""
        return TextEnded() if self.ended and any(mark.startswith(self.text) for mark in marks) else Mismatch()

    def until(self, mark: str, most: int) -> Waiting[str]:
        """Takes the mark and what comes before it, which is returned. Raises Mismatch where that has more than `most`
        characters."""
        while True:
            at = self.text.find(mark, 0, most + len(mark))
            if at >= 0:
                return self.take(at + len(mark))[:at]
            if len(self.text) >= most + len(mark):
                raise Mismatch
            yield from self.more()


def begun_length(text: str, *marks: str) -> int:
    """How many of the text's last characters may be the beginning of one of the marks."""
    longest = min(max(map(len, marks)) - 1, len(text))
    endings = (n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks))
    return next(endings, 0)


class JsonScan:
    """Follows one JSON value while it is being written, by its quotes and brackets: what stands between them is looked
    at when it has ended. What is found does not depend on how the text is cut into pieces. A value that has ended is
    read by `json.loads`, too, and what that makes of it can be written again: nothing of it is too long or too deep,
    and no number more than a double can hold."""

    def __init__(self) -> None:
        self.whole = False
        """Whether the value has ended. Of a number or word the character after it tells, or `finish`."""
        self.broken = False
        """Whether what came is no value."""
        self._read: list[str] = []
        self._depth = 0
        self._quoted = self._escaped = self._word = False

    def take(self, text: str) -> int:
        """How many characters of the text, which goes on after those taken before, are the value's. Less than all where
        the value is whole or broken."""
        at = 0
        ended = False
        while at < len(text) and not ended and not self.broken:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            marks = _IN_TEXT if self._quoted else _AFTER_WORD if self._word else _OUTSIDE
            if self._depth or self._quoted or self._word:
                found = marks.search(text, at)
                if found is None:
                    at = len(text)
                    break
                at = found.start()
            ended = self._mark(text[at])
            at += not (self._word or self.broken)
        self._read.append(text[:at])
        if ended:
            self._end()
        return at

    def finish(self) -> bool:
        """Whether the value is whole where nothing follows."""
        if self._word and not self.whole:
            self._end()
        return self.whole

    def _mark(self, mark: str) -> bool:
        """The next character that says something. Returns whether the value ends before or with it."""
        if self._quoted:
            self._escaped, self._quoted = mark == "\\", mark != '"'
            return not self._quoted and not self._depth
        if self._word:
            return True
        if mark == '"':
            self._quoted = True
        elif mark in "{[":
            self._depth += 1
            self.broken = self._depth > 128
        elif mark in "}]":
            self._depth -= 1
            self.broken = self._depth < 0
            return not self._depth
        elif mark in "-0123456789tfn":
            self._word = True
        else:
            self.broken = mark not in SPACE
        return False

    def _end(self) -> None:
        try:
            json.loads("".join(self._read), parse_constant=_number, parse_float=_number, parse_int=_number)
            self.whole = True
        except (ValueError, RecursionError):
            self.broken = True


def _number(text: str) -> float:
    if len(text) > 1000 or not math.isfinite(float(text)):
        raise ValueError
    return float(text)
