"""Grammars that are compiled, each in a process of its own, from which the processes of its answers fork.

Laws: 1. Only so many compile at a time (`CompilePlaces`), in the order in which they came. The time of one begins with
its turn. 2. A process that is killed from outside is begun again once. One that dies of what it does is not.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Final

from tpiedge.engine.grammar_link import GrammarLink, LinkEnded
from tpiedge.errors import ChildLost, GrammarRefused, TpiedgeError
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.requests import Grammar

READY_S: Final = 25.0
"""How long a process may take until it has begun: those before it, and the tokenizer, may take their time. All that
comes before a mask is less than a request may stand still."""
COMPILE_S: Final = 20.0
"""How long a grammar may be compiled, and then an answer begin with it. By their own limits of a processor's time they
end long before, if they get one."""
AGAIN_S: Final = 30.0
"""The same, where an answer has begun with it."""
_MAX_WHY: Final = 400


class CompilePlaces:
    """Which of the grammars that are to be compiled have their turn: the first `total`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line: list[Compilation] = []

    def join(self, one: "Compilation") -> None:
        self._line.append(one)

    def leave(self, one: "Compilation") -> None:
        if one in self._line:
            self._line.remove(one)

    @property
    def first(self) -> "Sequence[Compilation]":
        """The grammars that compile."""
        return tuple(self._line[: self._total])


class Compilation:
    """One grammar for one or several answers. Methods raise GrammarRefused where the grammar is refused, and ChildLost.
    `users`: how many Constraints have it."""

    def __init__(
        self,
        grammar: Grammar,
        fork: Callable[[], GrammarLink],
        places: CompilePlaces,
        now: Callable[[], float] = time.monotonic,
        *,
        again: bool,
    ) -> None:
        """`fork` makes a process, and raises OSError. `now` gives seconds. `again`: an answer has begun with it."""
        self.users = 0
        self._grammar = grammar
        self._fork = fork
        self._places = places
        self._now = now
        self._again = again
        self._link: GrammarLink | None = None
        self._is_ready = self._compiled = False
        self._error: TpiedgeError | None = None
        self._kills = 0
        self._spent_s = 0.0
        self._deadline = 0.0  # from its turn on
        places.join(self)

    @property
    def failed(self) -> bool:
        """Whether no answer can begin with it."""
        return self._error is not None

    def links(self) -> Sequence[GrammarLink]:
        """The links that say something when there is more to know; none where there is no need to wait."""
        first = self._places.first
        if self._compiled or self._error is not None or (self._link is None and self in first):
            return ()
        known = [self._link] if self._link is not None else [one._link for one in first]
        return [link for link in known if link is not None]

    def ready(self) -> bool:
        """Whether answers may begin."""
        if self._link is None:
            for one in self._places.first:
                one._look()
        self._look()
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return self._compiled

    def open(self) -> GrammarLink:
        """A link to a process for one answer. Raises OSError where there can be none just now."""
        if self._link is None:
            raise OSError("the process of the grammar has ended")
        return self._link.fork()

    def leave(self) -> None:
        """One user less; the last one ends it."""
        self.users -= 1
        if not self.users:
            self._end()

    def take_spent(self) -> float:
        """Seconds of a processor since this was asked last."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s + (self._link.spent_s() if self._link is not None else 0.0)

    def _look(self) -> None:
        """Goes on as far as it can, also for those that wait for its place."""
        try:
            if self._error is None:
                self._advance()
        except TpiedgeError as error:  # for its users, whenever they ask
            self._error = error
            self._end()

    def _advance(self) -> None:
        if self._link is None and self in self._places.first:
            self._begin()
        if self._link is not None:
            try:
                while frames := self._link.take():
                    for letter, body in frames:
                        self._understand(letter, body)
            except LinkEnded as ended:
                self._begin_again(ended)
        if self._link is not None and not self._compiled and self._now() > self._deadline:
            raise starved() if self._is_ready else not_ready()

    def _begin(self) -> None:
        try:
            self._link = self._fork()
        except OSError as error:
            raise ChildLost(
                f"this machine has no room for the process of a grammar ({error.strerror}): try again later"
            ) from None
        self._deadline = self._now() + READY_S
        asked = {"kind": self._grammar.kind, "text": self._grammar.text, "again": self._again}
        self._link.send(b"g", json.dumps(asked).encode("ascii"))

    def _begin_again(self, ended: LinkEnded) -> None:
        self._end()
        if not ended.foreign:
            raise too_much()
        self._kills += 1
        if self._kills > 1:
            raise killed()
        self._is_ready = self._compiled = False
        self._places.join(self)

    def _end(self) -> None:
        self._places.leave(self)
        if self._link is not None:
            self._spent_s += self._link.spent_s()
            self._link.close()
        self._link = None

    def _understand(self, letter: bytes, body: bytes) -> None:
        match letter:
            case b"r":
                self._is_ready = True
                self._deadline = self._now() + (AGAIN_S if self._again else COMPILE_S)
            case b"y":
                self._compiled = True
                self._places.leave(self)
            case b"e":
                raise refused(body)


def refused(why: bytes) -> GrammarRefused:
    """The error of a grammar that is wrong, in the words of its process."""
    return GrammarRefused(f"the grammar is refused: {sanitised_line(why.decode(errors='replace'), _MAX_WHY)}")


def too_much() -> GrammarRefused:
    """The error of a grammar that has reached a limit of its process."""
    return GrammarRefused("the grammar is refused: it takes too much time or memory; give a smaller one")


def killed() -> ChildLost:
    """The error of a grammar that was begun again and whose process was killed again."""
    return ChildLost(
        "the process of a grammar was killed twice, perhaps because this machine is short of memory: try again later"
    )


def starved() -> ChildLost:
    """The error of a process that is neither done nor at its limits: its priority is low, and others come first."""
    return ChildLost("this machine is too busy for the grammar of the request: try again later")


def not_ready() -> ChildLost:
    """The error of a process that does not get going."""
    return ChildLost(f"the process of a grammar was not ready within {READY_S:g} s: try again later")
