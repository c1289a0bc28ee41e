"""Constrains rank 0's answers to grammars, and limits how long steps wait for masks."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from tpiedge.engine.grammar_process import GrammarLink
from tpiedge.engine.grammars import Constraint, Grammars, await_any
from tpiedge.engine.sampler import TokenMask
from tpiedge.errors import ChildLost, UserError
from tpiedge.sanitise import RateLimitedLog
from tpiedge.wire.control import Compiled, Failed, Finished
from tpiedge.wire.requests import GenerationRequest, Grammar

_log = RateLimitedLog(logging.getLogger(__name__))
T = TypeVar("T")


class TriggeredConstraint:
    """A grammar that a trigger token starts. The grammar ends when the text after this token is a complete match. If
    the grammar fails, the answer continues without it."""

    def __init__(self, constraint: Constraint, grammar: Grammar, request: GenerationRequest) -> None:
        self._constraint = constraint
        self._begins, self._reasoning_marks = grammar.begins, grammar.thoughts
        self._stop = request.stop_ids[0]
        self._failed = self._within = self._thinking = False
        for token in request.prompt_ids if grammar.thoughts else ():
            self._think(token)
        #: How many tokens of this step had a mask before the grammar ended.
        self._kept = 0
        self._guesses: Sequence[int] = ()
        #: Tokens of an earlier epoch that were not replayed yet.
        self._earlier: Sequence[int] = request.answer_ids

    def links(self) -> Sequence[GrammarLink]:
        return self._constraint.links()

    def ready(self) -> bool:
        return self._failed or self._tried(self._caught_up, True)

    def known(self) -> bool:
        if self._earlier and not self.ready():
            return False
        return not self._within or self._tried(self._constraint.known, True)

    def take_spent(self) -> float:
        return self._constraint.take_spent()

    def forced(self) -> Sequence[int] | None:
        free: Sequence[int] | None = ()
        return self._tried(self._constraint.forced, free) if self._within else free

    def guess(self, ids: Sequence[int]) -> None:
        self._guesses = ids
        if self._within:
            self._tried(lambda: self._constraint.guess(ids), None)

    def masks(self, *, shared: bool) -> Iterator[TokenMask | None]:
        """Yields the masks of the next tokens; None allows all tokens. Stops where the grammar starts or ends."""
        self._kept = 0
        if self._within:
            none: list[TokenMask] = []
            for mask in self._tried(lambda: list(self._constraint.masks(shared=shared)), none):
                if self._stop // 8 < len(mask) and mask[self._stop // 8] >> self._stop % 8 & 1:
                    self._within = False
                    break
                yield mask
                self._kept += 1
            if not self._within:  # left at a place where its text may end, or failed
                yield None
            return
        yield None
        for token in self._guesses:
            if token == self._begins:
                return
            yield None

    def accept(self, tokens: Sequence[int]) -> None:
        if self._within:
            self._tried(lambda: self._constraint.accept(tokens), None)
        elif not self._failed:
            for token in tokens[self._kept :]:
                self._think(token)
                if token == self._begins and not self._thinking:
                    self._tried(lambda: self._constraint.restart(()), None)
                    self._within = True

    def close(self) -> None:
        self._constraint.close()

    def _caught_up(self) -> bool:
        while (ready := self._constraint.ready()) and self._earlier:
            self._catch_up()
        return ready

    def _catch_up(self) -> None:
        if self._within:
            self._earlier = self._earlier[self._constraint.kept :]
            self._within = not self._earlier
        for at, token in enumerate(self._earlier):
            self._think(token)
            if token == self._begins and not self._thinking:
                self._earlier, self._within = self._earlier[at + 1 :], True
                self._constraint.restart(self._earlier)
                return
        self._earlier = ()

    def _think(self, token: int) -> None:
        if token in self._reasoning_marks:
            self._thinking = token == self._reasoning_marks[0]

    def _tried(self, ask: Callable[[], T], failed: T) -> T:
        try:
            return ask()
        except (UserError, ChildLost):
            self._constraint.close()
            self._failed, self._within = True, False
            # The cause is not logged: its words may be a client's.
            _log.warning(
                "calls of an answer are not kept to its tools: their grammar was refused, or took too much"
            )
            return failed


AnswerConstraint = Constraint | TriggeredConstraint

#: Masks may delay a step of several requests by `_PART` of the previous step's time, or by `_LEAST_S` if that is more;
#: a step of one request by `_LONE_S`.
_PART: Final = 0.1
_LEAST_S: Final = 0.001
_LONE_S: Final = 0.05


def start_constraint(
    grammars: Grammars, request: GenerationRequest, group: str = ""
) -> AnswerConstraint | None:
    """Starts to compile the request's grammar. Returns None if no grammar applies. Raises UserError."""
    grammar = request.grammar
    if grammar is None:
        return None
    again = bool(request.answer_ids)
    if grammar.begins is None:
        return grammars.start_compile(request, again=again, group=group)
    try:
        constraint = grammars.start_compile(replace(request, answer_ids=()), again=again, group=group)
        return TriggeredConstraint(constraint, grammar, request)
    except UserError as error:
        _log.warning("calls of an answer are not kept to its tools: %s", error)
        return None


class GrammarPreparations:
    """Compiles grammars of an epoch's future requests."""

    def __init__(self, epoch: int, grammars: Grammars) -> None:
        self._epoch, self._grammars = epoch, grammars
        self._prepared: dict[str, AnswerConstraint | None] = {}
        #: Requests whose grammars the master does not know to be ready.
        self._untold: set[str] = set()

    @property
    def unready(self) -> Sequence[AnswerConstraint]:
        return [one for name in self._untold if (one := self._prepared[name]) is not None]

    def add(self, request: GenerationRequest, group: str) -> None:
        """Starts to compile a future request's grammar. Raises UserError."""
        self.drop([request.id])
        self._prepared[request.id] = start_constraint(self._grammars, request, group)
        self._untold.add(request.id)

    def claim(self, request: GenerationRequest) -> AnswerConstraint | None:
        """Returns the request's constraint, which may be compiling still. Raises UserError."""
        if request.id not in self._prepared:
            return start_constraint(self._grammars, request)
        self._untold.discard(request.id)
        return self._prepared.pop(request.id)

    def news(self) -> list[Compiled | Failed]:
        """Returns a message for each grammar that was compiled, or failed, since the last call."""
        found: list[Compiled | Failed] = []
        for name in [name for name in self._prepared if name in self._untold]:
            constraint = self._prepared[name]
            try:
                if constraint is None or constraint.ready():
                    spent_s = constraint.take_spent() if constraint is not None else 0.0
                    found.append(Compiled(self._epoch, name, spent_s))
                    self._untold.discard(name)
            except (UserError, ChildLost) as error:
                found.append(failed(self._epoch, name, error, self._end(name)))
        return found

    def drop(self, names: Collection[str]) -> list[Finished]:
        return [
            Finished(self._epoch, name, "cancel", 0, 0, 0, 0, processor_s=self._end(name))
            for name in names
            if name in self._prepared
        ]

    def _end(self, name: str) -> float:
        self._untold.discard(name)
        return end_constraint(self._prepared.pop(name))


def end_constraint(constraint: AnswerConstraint | None) -> float:
    """Closes the constraint, if any. Returns its CPU seconds since the last `take_spent`."""
    if constraint is None:
        return 0.0
    constraint.close()
    return constraint.take_spent()


def failed(epoch: int, request: str, error: Exception, spent_s: float = 0.0) -> Failed:
    return Failed(epoch, 0, request, type(error).__name__, str(error), spent_s)


class MaskWaits:
    """Limits a step's total wait for masks. `wait` blocks until a constraint has news or the given seconds are over."""

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        wait: Callable[[Sequence[AnswerConstraint], float], None] = await_any,
    ) -> None:
        self._now, self._wait = now, wait
        self._step_s = self._left_s = 0.0

    def start_step(self, *, lone: bool) -> None:
        self._left_s = _LONE_S if lone else max(_LEAST_S, _PART * self._step_s)

    def computed(self, step_s: float) -> None:
        self._step_s = step_s

    def until(self, answers: Sequence[tuple[AnswerConstraint, Callable[[], bool]]]) -> None:
        while missing := [one for one, known in answers if not known()]:
            if self._left_s <= 0.0:
                return
            before = self._now()
            self._wait(missing, self._left_s)
            self._left_s -= self._now() - before
