"""Constraints of requests that are to come: a grammar is compiled before its request takes a place."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tpiedge.engine.grammars import AnswerConstraint, Grammars
from tpiedge.engine.late_constraint import begin_late
from tpiedge.errors import ChildLost, GrammarRefused, UserError
from tpiedge.wire.control import Compiled, Failed, Finished
from tpiedge.wire.requests import GenerationRequest

_Begin = Callable[[GenerationRequest, str], AnswerConstraint | None]


def begin_constraint(
    grammars: Grammars | None, request: GenerationRequest, group: str = ""
) -> AnswerConstraint | None:
    """Has the grammar of the request compiled; None where the answer is free. `group`: as of Grammars.begin. Raises
    UserError."""
    if request.grammar is None:
        return None
    if request.grammar.begins is not None:
        return begin_late(grammars, request, request.grammar, group) if grammars else None
    if grammars is None:
        raise GrammarRefused("answers by a grammar are not to be had here")
    return grammars.begin(request, again=bool(request.answer_ids), group=group)


@dataclass(eq=False)
class _PreparedGrammar:
    constraint: AnswerConstraint | None
    told: bool = False


class GrammarPreparations:
    """The constraints of one epoch. `begin` makes a constraint, as `begin_constraint`."""

    def __init__(self, epoch: int, begin: _Begin) -> None:
        self._epoch = epoch
        self._begin = begin
        self._prepared: dict[str, _PreparedGrammar] = {}

    @property
    def unready(self) -> Sequence[AnswerConstraint]:
        """Constraints of which the master was not told yet."""
        found = (one.constraint for one in self._prepared.values() if not one.told)
        return [constraint for constraint in found if constraint is not None]

    def add(self, request: GenerationRequest, group: str) -> None:
        """Has the grammar compiled of a request that will come. Raises UserError."""
        self.drop([request.id])
        self._prepared[request.id] = _PreparedGrammar(self._begin(request, group))

    def take(self, request: GenerationRequest) -> AnswerConstraint | None:
        """The constraint of a request that has come, whether it is ready or not. Those of which no Compile told, as an
        earlier epoch began them, share what is equal within their scope. Raises UserError."""
        prepared = self._prepared.pop(request.id, None)
        return self._begin(request, _own_group(request)) if prepared is None else prepared.constraint

    def news(self) -> list[Compiled | Failed]:
        """Whose grammars have been compiled since this was asked last, and whose have failed."""
        found: list[Compiled | Failed] = []
        for name, one in list(self._prepared.items()):
            if one.told:
                continue
            try:
                one.told = one.constraint is None or one.constraint.ready()
            except (UserError, ChildLost) as error:
                spent_s = self._end(name)
                found.append(Failed(self._epoch, 0, name, type(error).__name__, str(error), spent_s))
                continue
            if one.told:
                spent_s = one.constraint.take_spent() if one.constraint is not None else 0.0
                found.append(Compiled(self._epoch, name, spent_s))
        return found

    def drop(self, names: Collection[str]) -> list[Finished]:
        """Ends those of requests that will not come."""
        ended = [name for name in names if name in self._prepared]
        return [
            Finished(self._epoch, name, "cancel", 0, 0, 0, 0, processor_s=self._end(name)) for name in ended
        ]

    def _end(self, name: str) -> float:
        """Returns the seconds of a processor that were spent and not told yet."""
        constraint = self._prepared.pop(name).constraint
        if constraint is None:
            return 0.0
        constraint.close()
        return constraint.take_spent()


def _own_group(request: GenerationRequest) -> str:
    """As of Compile, of a request whose grammar is begun here."""
    said = repr((request.scope, request.grammar, bool(request.answer_ids))).encode()
    return hashlib.blake2b(said, digest_size=16).hexdigest()
