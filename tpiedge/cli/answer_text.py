"""How the text of an answer is shown: wrapped between words on a terminal, with a word where the model runs in circles.

Pure: what is to be written comes back as text.
"""

from collections.abc import Callable
from typing import Final

REPEATS = "the model repeats itself: Ctrl-C stops it"

_TAB: Final = "    "
_LONGEST_PERIOD: Final = 200
_REPEATS: Final = 4
_LEAST_CHARACTERS: Final = 120
_EVERY: Final = 20


class WordWrap:
    """Text for a terminal of `columns` columns, which begins at the first one. `cells` is a character's width.

    A word that would cross the edge is taken back and begun anew on the next line. The last column stays free: a cursor
    that waits there for the next line could not be moved back.
    """

    def __init__(self, columns: int, cells: Callable[[str], int]) -> None:
        self._limit = max(columns - 1, 1)
        self._cells = cells
        self._column = 0
        self._word = ""
        self._word_cells = 0

    def push(self, text: str) -> str:
        """What to write for this text."""
        return "".join(map(self._one, text.replace("\t", _TAB)))

    def _one(self, mark: str) -> str:
        if mark == "\n":
            self._begin_line()
            return mark
        if mark == " ":
            self._word, self._word_cells = "", 0
            if self._column >= self._limit:  # the edge parts the words
                return ""
            self._column += 1
            return mark
        cells = max(self._cells(mark), 0)
        moved = ""
        if self._column + cells > self._limit:
            moved = self._moved_word()
        self._word += mark
        self._word_cells += cells
        self._column += cells
        return moved + mark

    def _moved_word(self) -> str:
        """Begins a line, with the word that was begun; a word that fills the line is cut instead."""
        word, cells = self._word, self._word_cells
        whole_line = cells == self._column
        self._begin_line()
        if whole_line or not word:
            return "\n"
        self._word, self._word_cells, self._column = word, cells, cells
        return f"\x1b[{cells}D\x1b[K\n{word}"

    def _begin_line(self) -> None:
        self._column, self._word, self._word_cells = 0, "", 0


class LoopWatch:
    """Notices an answer that says the same again and again."""

    def __init__(self) -> None:
        self._tail = ""
        self._unseen = 0
        self._told = False

    def push(self, text: str) -> bool:
        """Whether the answer is seen to repeat itself now; true once."""
        self._tail = (self._tail + text)[-_LONGEST_PERIOD * _REPEATS :]
        self._unseen += len(text)
        if self._told or self._unseen < _EVERY:
            return False
        self._unseen = 0
        self._told = _repeats(self._tail)
        return self._told


def _repeats(tail: str) -> bool:
    """Whether the text ends in `_REPEATS` or more equal parts with something to read in them."""
    longest = min(_LONGEST_PERIOD, len(tail) // _REPEATS)
    for period in range(1, longest + 1):
        length = max(period * _REPEATS, _LEAST_CHARACTERS)
        end = tail[-length:]
        if len(end) == length and end[period:] == end[:-period] and any(map(str.isalnum, end)):
            return True
    return False
