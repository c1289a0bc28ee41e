"""What an answer knows of its request, and what is recorded of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeGuard

from tpiedge.answers.generation import AnswerEvent
from tpiedge.model.tokenizer import TextWriter
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

    def add(self, choice: int, event: Token | PromptScores | Finished) -> None:
        """Adds what is about to be passed on of a choice."""
        ...

    def take_up(self) -> None:
        """Adds that another master asks for the rest."""
        ...

    def finish(self) -> None:
        """Nothing more is added. Idempotent."""
        ...

    def delete(self) -> None:
        """The answer needs it no more. Does not wait for the disk. Idempotent; no effect after `keep`."""
        ...

    def keep(self) -> None:
        """From now on nothing is written, and it stays for the next master, unless it was deleted. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """An answer that a master before this one did not deliver."""

    question: Question
    record: Record
    said: Sequence[RecordedEvent]


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
