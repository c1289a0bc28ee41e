"""Drafts from a sequence's own text: what followed the last time that its latest tokens stood there. Pure.

Answers often repeat what they or their prompts hold: a text with a word changed, code that is edited, a name. The
tokens that followed an earlier occurrence are then a good guess of those to come (prompt lookup decoding).

Laws:
1. A guess continues the earlier occurrence of the longest suffix that was found, the latest one of equals. A suffix has
   two tokens at least; beyond `_ENOUGH` tokens longer and shorter are alike.
2. Where a long match has just ended and no other is found, the guess goes on beside it: after the place of the same
   token, if that is near, or as if one token had been replaced by another.
3. A guess that reaches the end of the text goes on with its own tokens: a period is repeated.
4. Guesses are a function of the tokens appended and of when guesses were asked for; those that were asked for and not
   used do no harm.
5. `append` takes constant time, `draft` at most `_CANDIDATES` comparisons and its result's; twelve bytes are kept per
   token.

Pairs of tokens are found as in LZ77 compressors: `_heads` has, by a hash of the pair, where it last ended, and
`_earlier` where the one before that did. A pair enters when its successor is known: the suffix itself is not found.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_HASHES: Final = 1 << 14
#: Earlier occurrences that a search looks at.
_CANDIDATES: Final = 64
_ENOUGH: Final = 32
#: How long a match must have been for tokens beside it to be a guess, and how far beside it.
_TRUSTED: Final = 4
_REACH: Final = 8


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next; none, if nothing in the text suggests any.

    `matched`: how many tokens before them are those before the place they are from, as far as that was counted; 0 or 1:
    only beside a match. `sure`: how many of them cannot but come.
    """

    ids: tuple[int, ...] = ()
    matched: int = 0
    sure: int = 0


NO_GUESS: Final = Guess()


class PromptLookup:
    """The tokens of one sequence, and where pairs of them stand."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = array("I")
        self._heads = array("i", bytes(4 * _HASHES))
        self._earlier = array("i", (0, 0))
        # The place of the token that should come next, and how many before it are as those here. 0: none is known.
        self._place = 0
        self._matched = 0
        # The place of a token that should have come and did not, and how many came since.
        self._lost = 0
        self._strayed = 0
        for token in ids:
            self.append(token)

    def append(self, token: int) -> None:
        """The sequence goes on with this token."""
        ids = self._ids
        end = len(ids)
        if end >= 2:
            hashed = _hash(ids[end - 2], ids[end - 1])
            self._earlier.append(self._heads[hashed])
            self._heads[hashed] = end
        ids.append(token)
        self._follow(token)

    def draft(self, most: int) -> Guess:
        """At most so many tokens that may come next."""
        self._find()
        if not self._place or most < 1:
            return NO_GUESS
        ids = self._ids[self._place : self._place + most].tolist()
        for i in range(most - len(ids)):
            ids.append(ids[i])
        return Guess(tuple(ids), self._matched)

    def _follow(self, token: int) -> None:
        if self._lost:
            self._strayed += 1
            if self._strayed > _REACH:
                self._lost = 0
        if not self._place:
            return
        if self._ids[self._place] == token:
            self._place += 1
            self._matched += 1
            if self._matched >= _TRUSTED:
                self._lost = 0
            return
        if self._matched >= _TRUSTED:
            self._lost, self._strayed = self._place, 1
        self._place = self._matched = 0

    def _find(self) -> None:
        if self._matched >= _ENOUGH:
            return
        place, matched = self._longest()
        if matched >= max(2, self._matched):
            self._place, self._matched = place, matched
        elif not self._place and self._lost:
            self._place, self._matched = self._beside()

    def _longest(self) -> tuple[int, int]:
        """Where the longest suffix that is found ends, and its length; 0 of less than two tokens."""
        ids, best, longest = self._ids, 0, 1
        last = len(ids) - 1
        if last < 1:
            return 0, 0
        end = self._heads[_hash(ids[last - 1], ids[last])]
        for _ in range(_CANDIDATES):
            if not end:
                break
            if end > longest and ids[end - 1 - longest] == ids[last - longest]:
                length = self._common(end)
                if length > longest:
                    best, longest = end, length
                    if length >= _ENOUGH:
                        break
            end = self._earlier[end]
        return best, longest if best else 0

    def _common(self, end: int) -> int:
        """How many tokens before `end` are the latest ones, as far as it matters."""
        ids, beyond = self._ids, len(self._ids)
        most = min(_ENOUGH, end)
        length = 0
        while length < most and ids[end - 1 - length] == ids[beyond - 1 - length]:
            length += 1
        return length

    def _beside(self) -> tuple[int, int]:
        """A place beside the match that ended: after the nearest token that is the latest one, or in step with it."""
        ids, latest = self._ids, self._ids[-1]
        in_step = self._lost + self._strayed
        near = range(self._lost, min(self._lost + _REACH, len(ids) - 1))
        same = [place for place in near if ids[place] == latest]
        if same:
            return min(same, key=lambda place: abs(place + 1 - in_step)) + 1, 1
        return in_step, 0


def _hash(first: int, second: int) -> int:
    return (first * 0x9E3779B1 ^ second * 0x85EBCA77) >> 7 & _HASHES - 1
