"""One request on rank 0: its tokens and their pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tpiedge.engine.drafting import NO_GUESS, DraftLength, Guess, PromptLookup
from tpiedge.wire.data import Segment
from tpiedge.wire.requests import GenerationRequest


@dataclass(eq=False)
class RunningSequence:
    """A request from its arrival to its end. Only `batcher` changes it."""

    request: GenerationRequest
    #: Prompt and answer, whose last token is not computed yet.
    ids: list[int]
    #: See RopeConfig.
    short_tokens: int
    slot: int = -1
    #: Positions whose keys and values are computed and decided.
    done: int = 0
    pages: list[int] = field(default_factory=list)
    told: int = 0
    #: Names of the sequence's full pages that are computed or found.
    names: list[bytes] = field(default_factory=list)
    #: Names of all full pages of the tokens with which the sequence began.
    expected: list[bytes] = field(default_factory=list)
    cached: int = 0
    #: Positions that came from disk before the epoch's first token.
    brought: int = 0
    #: Whether other sequences must not find the pages.
    private: bool = False
    #: The number of the order that brings pages from disk; 0: none.
    arriving: int = 0
    steps: int = 0
    #: For guesses: the sequence's text, how many of its tokens were fed, and how well guesses did.
    lookup: PromptLookup | None = None
    fed: int = 0
    drafting: DraftLength = field(default_factory=DraftLength)
    #: Whether the sequence is computed but waits for its mask.
    undrawn: bool = False
    #: Returns the tokens that the grammar forces next; None while unknown.
    forced: Callable[[], Sequence[int] | None] = tuple

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def answer_tokens(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def long(self) -> bool:
        """Whether LongRoPE's long factors rotate all positions."""
        return len(self.ids) > self.short_tokens

    @property
    def able(self) -> bool:
        """Whether the sequence waits neither for its mask nor for its pages."""
        return not (self.undrawn or self.arriving)

    def scope_of(self, *, own: bool) -> str:
        """Names the sequences that may share pages: with `own` this one alone. Long ones share none with others."""
        name = self.request.id if own else self.request.scope
        return f"{name} long" if self.long else name

    @property
    def remaining(self) -> int:
        return len(self.ids) - self.done

    @property
    def scanned(self) -> bool:
        """Whether all prompt positions need hidden states."""
        every = self.request.prompt_scores or self.request.pooling == "mean"
        return every and self.answer_tokens == 0

    @property
    def decodes(self) -> bool:
        """Whether all tokens but the answer's latest one are computed."""
        return self.remaining == 1 and self.answer_tokens > 0


@dataclass(frozen=True, eq=False)
class StepPiece:
    """Tokens of a sequence, from position `start` on."""

    sequence: RunningSequence
    start: int
    ids: Sequence[int]
    #: How many of the last tokens need hidden states.
    wanted: int
    #: How many of the last tokens are guesses.
    drafted: int = 0
    guess: Guess = NO_GUESS

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)

    @property
    def segment(self) -> Segment:
        return Segment(self.sequence.slot, self.start, len(self.ids), self.wanted, self.sequence.long)

    @property
    def draws(self) -> bool:
        return self.stop - self.drafted == len(self.sequence.ids)
