"""Clients that know what their answer is to be, and look at every part of it when it comes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation import formula
from tests.unit.master.stories import read
from tpiedge.errors import Cancelled, PeerError, PeerLost, TpiedgeError
from tpiedge.master.journal import PendingAnswer
from tpiedge.master.reconciler import NotServing
from tpiedge.wire.control import AnswerPart, Embedding, Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

#: Says that a law holds, or breaks off with its words and a detail.
Law = Callable[..., None]


@dataclass
class Client:
    """One request and what has come of it. `parts` is what a journal would keep."""

    request: GenerationRequest
    pending: PendingAnswer
    law: Law
    has_reader: bool = True
    refused: bool = False  # its model could not be served
    cancelled: int | None = None  # how many parts had come when it was cancelled; None if it was not
    parts: list[AnswerPart] = field(default_factory=list)
    end: Finished | TpiedgeError | None = None

    @property
    def poisons(self) -> bool:
        return self.request.prompt_ids[0] == formula.POISON

    @property
    def tokens(self) -> list[int]:
        return [part.token for part in self.parts if isinstance(part, Token)]

    def resumed(self, pending: PendingAnswer) -> None:
        self.pending = pending
        self.has_reader = False

    def lose_tail(self, lost: int) -> None:
        del self.parts[max(0, len(self.parts) - lost) :]

    def listen(self, *, grace_over: bool) -> None:
        for event in read(self.pending):
            self.law(self.end is None, "nothing follows the end of an answer", event)
            match event:
                case Token() | PromptScores() | Embedding():
                    self._take(event)
                case Finished():
                    self._finish(event)
                case TpiedgeError():
                    self.end = event
                    self.law(
                        self._may_fail(event, grace_over), "a request ends early only with a reason", event
                    )

    def _take(self, part: AnswerPart) -> None:
        match part:
            case Token(index=index, token=token):
                answer = self.tokens
                self.law(index == len(answer), "no token is lost or comes twice", part)
                self.law(formula.ends(self.request, answer) is None, "nothing follows the last token", part)
                expected = formula.next_token(self.request, answer)
                self.law(token == expected, "every token is the one that was drawn", part, expected)
            case PromptScores(first=first, scores=scores):
                known = sum(len(one.scores) for one in self.parts if isinstance(one, PromptScores))
                self.law(first == known + 1, "no score is lost or comes twice", part)
                expected_scores = formula.scores(self.request)[known : known + len(scores)]
                self.law(scores == expected_scores, "every score is the model's", part)
            case Embedding(values=values):
                self.law(values == formula.vector(self.request), "every vector is the model's", part)
                self.law(
                    not any(isinstance(one, Embedding) for one in self.parts), "a vector comes once", part
                )
        self.parts.append(part)
        late = 0 if self.cancelled is None else len(self.parts) - self.cancelled
        self.law(late <= 1, "what is cancelled is not computed any more", part)

    def cancel(self) -> None:
        self.cancelled = len(self.parts) if self.cancelled is None else self.cancelled
        self.pending.cancel()

    def _finish(self, finished: Finished) -> None:
        self.end = finished
        if finished.reason == "cancel":
            self.law(self.cancelled is not None, "what nobody cancels comes to its end", finished)
            return
        answer = self.tokens
        if self.request.pooling != "none":
            whole = any(isinstance(one, Embedding) for one in self.parts)
        else:
            whole = formula.ends(self.request, answer) == finished.reason
        self.law(whole and finished.tokens == len(answer), "an answer that ends is whole", finished)
        if self.request.prompt_scores:
            known = sum(len(one.scores) for one in self.parts if isinstance(one, PromptScores))
            self.law(
                known == len(self.request.prompt_ids) - 1, "an answer that ends has all scores", finished
            )

    def _may_fail(self, error: TpiedgeError, grace_over: bool) -> bool:
        if isinstance(error, NotServing):
            return grace_over or self.refused
        if isinstance(error, Cancelled):
            return self.cancelled is not None or not self.has_reader
        return self.refused or (self.poisons and isinstance(error, PeerLost | PeerError))
