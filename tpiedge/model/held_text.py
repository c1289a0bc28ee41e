"""A text that comes in pieces, for readers that are generators: a yield waits for more of it. Pure."""

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""Yields while it needs more of the text, or has to know that nothing more comes."""
SPACE: Final = " \t\r\n"


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
