"""Keeps parts of an answer to a grammar: what follows a certain token, each time.

Laws:
1. Before that token, and from the first place on where the text of the grammar may end, the answer is free, and nothing
   is asked of anybody.
2. A grammar that fails in any way leaves the answer free; no request is refused, and the log says so.
3. As of `grammars`: what is allowed depends on the grammar, the prompt and the tokens of the answer alone.
4. An answer that an earlier epoch began is caught up with before it goes on: no step waits for that.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tpiedge.engine.grammar_link import GrammarLink
from tpiedge.engine.grammars import Constraint, Grammars
from tpiedge.engine.sampler import TokenMask
from tpiedge.errors import ChildLost, UserError
from tpiedge.rate_limited_log import RateLimitedLog
from tpiedge.wire.requests import GenerationRequest, Grammar

_log = RateLimitedLog(logging.getLogger(__name__))


class LateConstraint:
    """An AnswerConstraint that raises no UserError. Its grammar is compiled before the answer begins."""

    def __init__(self, constraint: Constraint, grammar: Grammar, request: GenerationRequest) -> None:
        """`constraint`: of the grammar, none of whose tokens was drawn."""
        self._constraint = constraint
        self._failed = False
        self._begins = grammar.begins
        self._thoughts = grammar.thoughts
        self._thinking = False
        for token in request.prompt_ids if grammar.thoughts else ():
            self._think(token)
        self._stop = request.stop_ids[0]
        #: Whether the next token is to be the grammar's.
        self._within = False
        #: How many of the tokens that are drawn in this step were the grammar's, before it ended.
        self._kept = 0
        self._guesses: Sequence[int] = ()
        #: Tokens that an earlier epoch drew, until they were looked at.
        self._earlier: Sequence[int] = request.answer_ids

    def links(self) -> Sequence[GrammarLink]:
        return self._constraint.links()

    def ready(self) -> bool:
        """Whether the grammar is compiled and has come to where an earlier epoch ended, or has failed."""
        ready = True
        with self._or_free():
            while (ready := self._constraint.ready()) and self._earlier:
                self._catch_up()
        return ready

    def heard(self) -> bool:
        heard = True
        if self._within:
            with self._or_free():
                heard = self._constraint.heard()
        return heard

    def known(self) -> bool:
        known = True
        if self._within:
            with self._or_free():
                known = self._constraint.known()
        return known

    def take_spent(self) -> float:
        return self._constraint.take_spent()

    def forced(self) -> Sequence[int]:
        forced: Sequence[int] = ()
        if self._within:
            with self._or_free():
                forced = self._constraint.forced()
        return forced

    def guess(self, ids: Sequence[int]) -> None:
        self._guesses = ids
        if self._within:
            with self._or_free():
                self._constraint.guess(ids)

    def masks(self, *, shared: bool) -> Iterator[TokenMask | None]:
        """None where everything may be drawn. Not after a guess that begins the grammar, or ends it."""
        self._kept = 0
        if self._within:
            if (yield from self._asked(shared)):
                yield None
            return
        yield None
        for token in self._guesses:
            if token == self._begins:
                return
            yield None

    def accept(self, tokens: Sequence[int]) -> None:
        if self._failed:
            return
        with self._or_free():
            if self._within:
                self._constraint.accept(tokens)
                return
            for token in tokens[self._kept :]:
                self._think(token)
                if token == self._begins and not self._thinking:
                    self._constraint.restart(())
                    self._within = True

    def close(self) -> None:
        self._constraint.close()

    def _asked(self, shared: bool) -> Generator[TokenMask, None, bool]:
        """The masks up to the first place where the grammar's text may end, or where it fails. Returns whether the
        grammar was left there."""
        with self._or_free():
            for mask in self._constraint.masks(shared=shared):
                if _has(mask, self._stop):
                    self._within = False
                    break
                yield mask
                self._kept += 1
        return not self._within

    def _catch_up(self) -> None:
        """With the tokens of an earlier epoch up to the next that begins the grammar: all after that are given to it,
        and those that were not its own are looked at when it has told so."""
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
        if token in self._thoughts:
            self._thinking = token == self._thoughts[0]

    @contextmanager
    def _or_free(self) -> Iterator[None]:
        """Where the grammar fails, the answer is free from now on."""
        try:
            yield
        except (UserError, ChildLost):
            self._constraint.close()
            self._failed, self._within = True, False
            # Not why, which may be of what a client sent.
            _log.warning(
                "calls of an answer are not kept to its tools: their grammar was refused, or took too much"
            )


def begin_late(
    grammars: Grammars, request: GenerationRequest, grammar: Grammar, group: str = ""
) -> LateConstraint | None:
    """Has the grammar compiled; None where that cannot be. `group`: as of Grammars.begin."""
    alone = replace(request, answer_ids=())
    try:
        constraint = grammars.begin(alone, again=bool(request.answer_ids), group=group)
        return LateConstraint(constraint, grammar, request)
    except UserError as error:
        _log.warning("calls of an answer are not kept to its tools: %s", error)
        return None


def _has(mask: TokenMask, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)
