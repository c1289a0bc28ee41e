"""What an answer knows of its request, and what is recorded of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeGuard

from tpiedge.answers.generation import AnswerEvent
from tpiedge.model.text import TextWriter
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

# How much memory an event takes: objects of Python, not what they say.
_EVENT: Final = 320
_SCORE: Final = 128  # a pair of a number and a float
_NUMBER: Final = 36  # and its place in a tuple

RecordedEvent: TypeAlias = tuple[int, Token | PromptScores | Finished]
"""What is recorded of an answer, with the number of the choice that it is of."""


@dataclass(frozen=True, slots=True)
class Question:
    """An accepted request, as its answer needs to know it. `name`: the answer's; `requests`: one for each choice;
    `stops`: what finds the stop strings of each, empty where there are none; `stream`: how it is given; `nbytes`: of
    memory that it takes, about; `about`: what else its owner knows of it."""

    name: str
    requests: tuple[GenerationRequest, ...]
    stops: Sequence[TextWriter]
    stream: bool
    nbytes: int
    about: object = None


class Record(Protocol):
    """What survives the master of one answer. For any thread; nothing of it raises."""

    @property
    def there(self) -> bool:
        """Whether all that was passed on is recorded."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it is not recorded because the disk could not take it, and `write_anew` is to be tried."""
        ...

    def add(self, choice: int, event: Token | PromptScores | Finished) -> None:
        """Adds what is about to be passed on of a choice."""
        ...

    def take_up(self) -> None:
        """Adds that another master asks for the rest."""
        ...

    def finish(self) -> None:
        """Nothing more is added. Idempotent."""
        ...

    def write_anew(self, said: Sequence[RecordedEvent], taken_up: int, *, now_too: bool) -> None:
        """Makes the record anew where it is `lost`, and there is room. `taken_up`: by how many masters before;
        `now_too`: and by this one."""
        ...

    def delete(self) -> None:
        """The answer needs it no more. Does not wait for the disk. Idempotent; no effect after `keep`."""
        ...

    def keep(self) -> None:
        """From now on nothing is written, and it stays for the next master, unless it was deleted. Idempotent."""
        ...

    def take_back(self) -> None:
        """After `keep`, where the master ended in order: that it took the answer up, and no more, does not count. No
        effect on other records. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """An answer that a master before this one did not deliver; `age_s`: of its request; `taken_up`: by how many masters
    since something was said last."""

    question: Question
    record: Record
    said: Sequence[RecordedEvent]
    age_s: float
    taken_up: int


def event_bytes(event: AnswerEvent) -> int:
    """How much memory it takes, about, and rather too much."""
    match event:
        case Token(logprobs=logprobs):
            return _EVENT + _SCORE * len(logprobs)
        case PromptScores(scores=scores, likeliest=likeliest):
            return _EVENT + _NUMBER * len(scores) + _SCORE * len(likeliest)
        case Embedding(values=values):
            return _EVENT + _NUMBER * len(values)
        case _:
            return _EVENT


def is_recorded(event: AnswerEvent) -> TypeGuard[Token | PromptScores | Finished]:
    """Whether another master needs to know it. A choice that is cancelled has no end: that one goes on with it."""
    return isinstance(event, Token | PromptScores) or (
        isinstance(event, Finished) and event.reason != "cancel"
    )
