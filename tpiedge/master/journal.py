"""What was said of one request's answer, so that another epoch can go on with it: a machine without clock or threads.

Laws:
1. A token, a score and an embedding are passed on once, in their order, whatever the epochs say of them twice.
2. What another epoch is asked continues prompt and answer exactly: the next token has the next position, whose random
   number depends on nothing but the seed and that position (`engine/sampler.py`).
3. A request is a suspect after SUSPECT deaths in a row in whose epochs nothing was passed on of it, and guilty after
   GUILTY, one of which came while nothing else ran. Three deaths after one thing count as one: that comes of reading
   the prompt, and a node may die of what follows. A death is a loss in which a node ended by itself or hung
   (`blame.py`), not one in which a node fell silent, a link broke or a machine was lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from tpiedge.master.request_times import PauseCause
from tpiedge.wire.control import AnswerPart, Embedding, Finished, FinishReason, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

SUSPECT: Final = 2
GUILTY: Final = 3


@dataclass(frozen=True, slots=True)
class Paused:
    """The answer pauses; `why`, in one line. It comes again where the reason changes during the pause."""

    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The next token comes `paused_s` seconds after the pause began."""

    paused_s: float


@dataclass(frozen=True, slots=True)
class TakenUp:
    """Rank 0 is asked for the rest of an earlier master's answer, for the first time by this master."""


@dataclass(eq=False)
class Journal:
    """`answer_ids`: the tokens that were passed on. `begun`: whether rank 0 of any epoch was asked."""

    request: GenerationRequest
    answer_ids: list[int] = field(default_factory=list)
    begun: bool = False
    #: Epochs that ended under it, for whatever reason.
    interruptions: int = 0
    #: When the pause began that lasts; None while it gets on.
    paused: float | None = None
    #: Why the latest pause began.
    paused_by: PauseCause = "plan"
    _scored: int = 1  # the first position of the prompt without a score
    _embedded: bool = False  # whether its embedding was passed on
    _passed_on: int = 0  # in this epoch
    #: Thirds of deaths in a row, as law 3 counts them, and whether nothing else ran in one of them.
    _thirds: int = 0
    _alone: bool = False

    @property
    def losses(self) -> int:
        """Deaths in a row in which it did not get on."""
        return self._thirds // 3

    @property
    def suspect(self) -> bool:
        """Whether nothing else is to begin beside it."""
        return self.losses >= SUSPECT

    @property
    def guilty(self) -> bool:
        """Whether it is not tried again."""
        return self._alone and self.losses >= GUILTY

    @property
    def reading(self) -> bool:
        """Whether nothing has come of it in this epoch: what is computed of it would be lost with the epoch."""
        return self._passed_on == 0

    @property
    def positions(self) -> int:
        """How many tokens another epoch would read."""
        return len(self.request.prompt_ids) + len(self.answer_ids)

    @property
    def rest(self) -> GenerationRequest:
        """The request for what is missing of the answer."""
        if not self.answer_ids:
            return self.request
        return replace(self.request, answer_ids=tuple(self.answer_ids))

    @property
    def complete(self) -> FinishReason | None:
        """The finish reason if all came and only rank 0's Finished is missing; else None."""
        request = self.request
        if request.pooling != "none":
            return "stop" if self._embedded else None
        if self.answer_ids and self.answer_ids[-1] in request.stop_ids and not request.ignore_eos:
            return "stop"
        return "length" if self.answer_ids and len(self.answer_ids) >= request.max_tokens else None

    def restore(self, said: Iterable[AnswerPart], now: float) -> None:
        """Takes what an earlier master passed on, in its order. The answer pauses."""
        for message in said:
            self.take(message)
        self.begun = True
        self.interrupted(now, "restart")

    def interrupted(self, now: float, cause: PauseCause = "plan") -> None:
        """Its part in an epoch ended. A pause that lasts goes on."""
        self.interruptions += 1
        self._passed_on = 0
        if self.paused is None:
            self.paused, self.paused_by = now, cause

    def died(self, *, alone: bool) -> None:
        """A node died in its epoch, which is about to be `interrupted`. `alone`: no other request ran."""
        if self._passed_on <= 1:
            self._thirds += 3 if self._passed_on == 0 else 1
            self._alone |= alone

    def take(self, message: AnswerPart) -> AnswerPart | None:
        """What of the message is to be passed on, if anything."""
        new = self._next(message)
        if new is not None:
            self._passed_on += 1
            if self._passed_on > 1:
                self._thirds, self._alone = 0, False
        return new

    def agrees(self, finished: Finished) -> bool:
        """Whether the answer that ended is the one that was passed on."""
        embedded = self._embedded or self.request.pooling == "none"
        return finished.tokens == len(self.answer_ids) and embedded

    def _next(self, message: AnswerPart) -> AnswerPart | None:
        match message:
            case Token():
                return self._next_token(message)
            case PromptScores():
                return self._next_scores(message)
            case Embedding():
                known, self._embedded = self._embedded, True
                return None if known else message

    def _next_token(self, message: Token) -> Token | None:
        if message.index != len(self.answer_ids):
            return None
        self.answer_ids.append(message.token)
        return message

    def _next_scores(self, message: PromptScores) -> PromptScores | None:
        known = self._scored - message.first
        if not 0 <= known < len(message.scores):
            return None
        new = message.since(self._scored)
        self._scored += len(new.scores)
        return new
