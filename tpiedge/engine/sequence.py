"""One request on rank 0: its tokens, how far they are computed, and the pages that hold them."""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tpiedge.engine.drafting import NO_GUESS, DraftLength, Guess, PromptLookup
from tpiedge.wire.requests import GenerationRequest


@dataclass(frozen=True)
class CarriedSequence:
    """What a request has in the KV cache when its epoch ends: its first `done` positions, whose tokens have the digest
    `tokens`, in `pages`, counted among those that are carried; `scope` as of GenerationRequest."""

    request: str
    scope: str
    done: int
    tokens: str
    pages: tuple[int, ...]

    @staticmethod
    def of(request: GenerationRequest, ids: Sequence[int], pages: tuple[int, ...]) -> "CarriedSequence":
        """With the tokens `ids`."""
        return CarriedSequence(request.id, request.scope, len(ids), _digest(ids), pages)

    def begins(self, request: GenerationRequest, ids: Sequence[int]) -> bool:
        """Whether `ids`, of that request, begin with its tokens, and go on."""
        known = self.scope == request.scope and self.done < len(ids)
        return known and _digest(ids[: self.done]) == self.tokens


def _digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("I", ids).tobytes(), digest_size=16).hexdigest()


@dataclass(eq=False)
class RunningSequence:
    """A request that was accepted, from its arrival to its end; `batcher` changes it."""

    request: GenerationRequest
    #: Prompt and answer. The last token of an answer is not computed yet.
    ids: list[int]
    #: Of the KV cache, while it runs; -1 while it waits.
    slot: int = -1
    #: Positions whose keys and values are computed and decided on.
    done: int = 0
    pages: list[int] = field(default_factory=list)
    #: How many of the pages the other nodes know.
    told: int = 0
    #: Of its full pages, as far as they are computed, or found.
    names: list[bytes] = field(default_factory=list)
    #: Those of all full pages that its tokens had when it began to run.
    expected: list[bytes] = field(default_factory=list)
    #: Prompt positions that were found in kept pages when it first ran.
    cached: int = 0
    #: What it has of an earlier epoch, in pages of this one, until it begins with that.
    carried: CarriedSequence | None = None
    #: Whether other sequences must not find its pages: their keys and values would have other bits here.
    private: bool = False
    #: Steps that brought tokens.
    steps: int = 0
    #: Where its tokens, the first `fed` of them, are looked up for guesses of the next, and what those were worth.
    lookup: PromptLookup | None = None
    fed: int = 0
    drafting: DraftLength = field(default_factory=DraftLength)
    #: Whether it waits to know what may be drawn after what is computed.
    undrawn: bool = False
    #: Says the tokens that its grammar forces next; None where that is not known.
    forced: Callable[[], Sequence[int] | None] | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def answer_tokens(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Positions to compute before the next token can be drawn."""
        return len(self.ids) - self.done

    @property
    def scanned(self) -> bool:
        """Whether the hidden states of all positions of its prompt are still wanted."""
        every = self.request.prompt_scores or self.request.pooling == "mean"
        return every and self.answer_tokens == 0

    @property
    def decodes(self) -> bool:
        """Whether all but the latest token of its answer are computed."""
        return self.remaining == 1 and self.answer_tokens > 0


@dataclass(frozen=True, eq=False)
class StepPiece:
    """What a step computes of one sequence: the tokens at the positions from `start` on, of which the last `drafted`
    are the first of `guess`. `wanted`: of how many of the last positions the hidden states are used."""

    sequence: RunningSequence
    start: int
    ids: Sequence[int]
    wanted: int
    drafted: int = 0
    guess: Guess = NO_GUESS

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)

    @property
    def draws(self) -> bool:
        """Whether the last position's logits are those of the next token."""
        return self.stop - self.drafted == len(self.sequence.ids)
