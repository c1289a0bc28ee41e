"""Chooses the tokens of each step. Pure.

1. Sequences begin in arrival order, once a slot and all their pages are free. A sequence waits while another sequence
   computes a page that both share.
2. If no page is free, the youngest sequence is preempted. It waits first in the queue.
3. Prompts may make a step with answers `_MAX_SLOWDOWN` times as long. A step without answers may take `_STEP_S` or
   twice a token's time. The longer time counts. Such steps have no limit if only one sequence may run. The oldest
   prompt gets a fixed part of the prompt tokens. The shortest remaining prompts get the rest.
4. A page is shared once its tokens are decided and computed.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tpiedge.engine.drafting import NO_GUESS, Guess, PromptLookup, allot
from tpiedge.engine.sequence import RunningSequence, SavedSequence, StepPiece
from tpiedge.engine.step_cost import StepCost
from tpiedge.kv.pages import PagePool
from tpiedge.wire.data import Segment, TableChange
from tpiedge.wire.fields import MAX_PAGES
from tpiedge.wire.requests import GenerationRequest

#: Most guesses for one sequence in a step: a native call takes at most these and the row before them.
MAX_DRAFTED: Final = 15
_MAX_SLOWDOWN: Final = 4.8
_STEP_S: Final = 1.0
_UNKNOWN_TOKENS: Final = 64  # most prompt tokens beside answers while costs are unknown
_LEAST_TOKENS: Final = 16  # least prompt tokens allowed beside answers
_ROOMY_TOKENS: Final = 256  # least prompt tokens allowed in a step without answers
#: The oldest prompt gets one in this many of a step's prompt tokens.
_OLDEST_PART: Final = 4
#: Most rows of answers and guesses in a step.
_MOST_ROWS: Final = 64
#: Most new pages of one step: half of the pages that its plan can name.
_MOST_PAGES: Final = MAX_PAGES // 2


@dataclass(frozen=True)
class Batch:
    """The plan of one step. Pieces that decode come first; `decode_tokens` counts their tokens."""

    pieces: tuple[StepPiece, ...]
    tables: tuple[TableChange, ...]
    discarded: tuple[int, ...]
    segments: tuple[Segment, ...]
    decode_tokens: int

    @property
    def ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.ids]

    @property
    def lone(self) -> str:
        return self.pieces[0].sequence.request.id if len(self.pieces) == 1 else ""


class Batcher:
    """`step_tokens` limits a step's tokens. `sequences` limits the running sequences. `speculate` limits the guesses
    for one sequence in a step. `short_tokens`: see RopeConfig. The caller adds measured times to `cost`."""

    def __init__(
        self, pool: PagePool, step_tokens: int, sequences: int, speculate: int, short_tokens: int
    ) -> None:
        self._pool, self.cost, self._short_tokens = pool, StepCost(), short_tokens
        self._step_tokens, self._sequences, self._speculate = step_tokens, sequences, speculate
        self._waiting: deque[RunningSequence] = deque()
        self._running: list[RunningSequence] = []
        self._slots = list(range(sequences))  # a heap
        self._short = False  # a running sequence lacked pages in the last step
        #: Restored sequences by request; and whether other sequences must not find their pages.
        self._restored: dict[str, SavedSequence] = {}
        self._private = False

    @property
    def idle(self) -> bool:
        """Whether no sequence can be computed now."""
        waits = self._running or not self._waiting
        return bool(waits) and all(sequence.undrawn for sequence in self._running)

    @property
    def sequences(self) -> tuple[RunningSequence, ...]:
        return (*self._running, *self._waiting)

    def add(self, request: GenerationRequest) -> RunningSequence:
        """Accepts a request, which must fit the cache."""
        sequence = RunningSequence(request, [*request.prompt_ids, *request.answer_ids], self._short_tokens)
        if self._speculate:
            sequence.lookup = PromptLookup()
        restored = self._restored.pop(request.id, None)
        if restored is not None and restored.matches(sequence):
            sequence.restored = restored
        elif restored is not None:
            self._pool.give_back(restored.pages)
        self._waiting.append(sequence)
        return sequence

    def to_save(self, most_pages: int) -> tuple[tuple[int, ...], tuple[SavedSequence, ...]]:
        """Returns at most `most_pages` pages to save, and the running sequences that use them, the oldest first."""
        places: dict[int, int] = {}
        saved: list[SavedSequence] = []
        for one in self._running:
            if not one.done or one.scanned:  # hidden states are not saved
                continue
            pages = one.pages[: self._pool.pages_of(one.done)]
            new = [page for page in pages if page not in places]
            if len(places) + len(new) > most_pages:
                break
            places |= {page: len(places) + at for at, page in enumerate(new)}
            had = tuple(places[page] for page in pages)
            saved.append(SavedSequence.of(one, had))
        return tuple(places), tuple(saved)

    def adopt(self, sequences: Sequence[SavedSequence], pages: int, *, private: bool) -> None:
        """Holds the pool's first `pages` pages for restored `sequences`, until `add` takes them. `private`: no other
        sequence may share these pages."""
        self._private = private
        self._restored = {one.request: one for one in sequences}
        allocated = [self._pool.allocate() for _ in range(pages)]
        for one in sequences:
            for page in one.pages:
                self._pool.share(page)
        self._pool.give_back(allocated)

    def free_restored(self, *, claimed: bool = False) -> bool:
        """Frees restored pages that no request has claimed; with `claimed`, also pages that waiting sequences claimed.
        Returns whether there were any."""
        found, self._restored = list(self._restored.values()), {}
        for sequence in self._waiting if claimed else ():
            if sequence.restored is not None:
                found.append(sequence.restored)
                sequence.restored = None
        for one in found:
            self._pool.give_back(one.pages)
        return bool(found)

    def end(self, sequence: RunningSequence) -> None:
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            if sequence.restored is not None:
                self._pool.give_back(sequence.restored.pages)
        else:
            self._running.remove(sequence)
            self._release(sequence)

    def plan(self) -> Batch | None:
        """Plans the next step. Returns None if no sequence can be computed."""
        self._admit()
        pieces = self._pieces()
        if not pieces:
            return None
        self._pool.fit(len(sequence.ids) for sequence in self._running)
        tables = tuple(change for piece in pieces if (change := _change(piece.sequence)) is not None)
        left = max(0, MAX_PAGES - sum(len(change.pages) for change in tables))
        segments = tuple(piece.segment for piece in pieces)
        decode_tokens = sum(len(piece.ids) for piece in pieces if piece.sequence.decodes)
        return Batch(tuple(pieces), tables, self._pool.discarded(left), segments, decode_tokens)

    def undrawn(self, piece: StepPiece) -> None:
        """Pauses the piece's sequence, because its next mask is missing."""
        sequence = piece.sequence
        sequence.undrawn = True
        sequence.done = piece.stop - piece.drafted - 1
        self._publish(sequence)

    def decided(self, piece: StepPiece, tokens: Sequence[int]) -> None:
        """Records the tokens drawn after `piece`; there are none within a prompt. Preempts a sequence that becomes
        long."""
        sequence, was_long = piece.sequence, piece.sequence.long
        sequence.undrawn = False
        sequence.done = piece.stop - piece.drafted + max(0, len(tokens) - 1)
        sequence.ids += tokens
        sequence.steps += bool(tokens)
        if tokens:
            sequence.drafting.learn(piece.guess, tokens)
        _feed(sequence, len(sequence.ids) if tokens else sequence.done)
        if sequence.long is was_long:
            self._publish(sequence)
        else:
            self._preempt(sequence)

    def _admit(self) -> None:
        passed: list[RunningSequence] = []
        pages = sum(len(sequence.pages) - sequence.told for sequence in self._running)
        while self._waiting and self._slots and not (self._short and self._running):
            sequence = self._waiting[0]
            found = self._found(sequence)
            if found is None:
                passed.append(self._waiting.popleft())
                continue
            if pages and pages + len(found) > _MOST_PAGES:
                break
            if not self._fits(sequence, found):
                if self._running or not self.free_restored(claimed=True):
                    break
                continue
            pages += len(found)
            self._begin(self._waiting.popleft(), found)
        self._waiting.extendleft(reversed(passed))

    def _found(self, sequence: RunningSequence) -> list[int] | None:
        """Returns the pages with which the sequence can begin; None while another sequence computes the next page."""
        if sequence.restored is not None:
            return list(sequence.restored.pages)
        if not self._shares(sequence):
            return []
        scope = sequence.scope
        sequence.expected = sequence.expected or [*self._pool.names(sequence.ids[:-1], scope)]
        found = self._pool.find(sequence.ids, scope)
        at = len(found)
        if at < len(sequence.expected) and any(
            not other.decodes
            and len(other.names) <= at < len(other.expected)
            and other.expected[at] == sequence.expected[at]
            for other in self._running
        ):
            return None
        return found

    def _fits(self, sequence: RunningSequence, found: Sequence[int]) -> bool:
        needed = self._pool.pages_of(len(sequence.ids)) - len(found)
        promised = sum(
            max(0, self._pool.pages_of(len(other.ids)) - len(other.pages)) for other in self._running
        )
        return needed + promised <= self._pool.available - self._pool.idle_among(found)

    def _begin(self, sequence: RunningSequence, found: list[int]) -> None:
        if sequence.restored is not None:
            sequence.pages, sequence.done, sequence.private = found, sequence.restored.done, self._private
            sequence.restored = None
            self._publish(sequence)
        else:
            for page in found:
                self._pool.share(page)
            sequence.pages, sequence.names = found, sequence.expected[: len(found)]
            sequence.done = len(found) * self._pool.positions
            if sequence.answer_tokens == 0:
                sequence.cached = sequence.done
        sequence.slot = heapq.heappop(self._slots)
        _feed(sequence, sequence.done)
        self._running.append(sequence)

    def _preempt(self, sequence: RunningSequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.appendleft(sequence)

    def _release(self, sequence: RunningSequence) -> None:
        self._pool.give_back(sequence.pages)
        heapq.heappush(self._slots, sequence.slot)
        sequence.slot, sequence.done, sequence.told = -1, 0, 0
        sequence.pages, sequence.names, sequence.expected = [], [], []
        sequence.private = sequence.undrawn = False

    def _shares(self, sequence: RunningSequence) -> bool:
        request = sequence.request
        kept = request.keep_prefix and not sequence.private
        return kept and not (request.prompt_scores or sequence.scanned)

    def _publish(self, sequence: RunningSequence) -> None:
        if not self._shares(sequence):
            return
        size = self._pool.positions
        while (len(sequence.names) + 1) * size <= sequence.done:
            at = len(sequence.names)
            before = sequence.names[-1] if at else self._pool.scope_name(sequence.scope)
            tokens = sequence.ids[at * size : (at + 1) * size]
            sequence.names.append(self._pool.publish(sequence.pages[at], before, tokens))

    def _pieces(self) -> list[StepPiece]:
        self._short = False
        able = [sequence for sequence in self._running if not sequence.undrawn]
        decoding = [sequence for sequence in able if sequence.decodes]
        pieces: list[StepPiece] = []
        for sequence in decoding:
            if sequence.slot >= 0 and self._secure(sequence, sequence.done + 1, pieces):
                pieces.append(StepPiece(sequence, sequence.done, sequence.ids[-1:], 1))
        pieces = self._with_drafts(pieces)
        rows = sum(len(piece.ids) for piece in pieces)
        prompts = [sequence for sequence in able if not sequence.decodes]
        for sequence, tokens in self._allotted(prompts, rows):
            # An earlier prompt may have preempted the sequence, or `_secure` does.
            if sequence.slot >= 0 and not self._secure(sequence, sequence.done + tokens, pieces):
                tokens = len(sequence.pages) * self._pool.positions - sequence.done
            if sequence.slot >= 0 and tokens > 0:
                ids = sequence.ids[sequence.done : sequence.done + tokens]
                pieces.append(StepPiece(sequence, sequence.done, ids, tokens if sequence.scanned else 1))
        return pieces

    def _with_drafts(self, pieces: Sequence[StepPiece]) -> list[StepPiece]:
        if not pieces or not self._speculate:
            return list(pieces)
        bids = [(piece.sequence.drafting, self._guess(piece.sequence)) for piece in pieces]
        rows = len(pieces)
        counts = allot(bids, rows, self.cost, min(_MOST_ROWS, self._step_tokens) - rows)
        return [
            self._drafted(piece.sequence, guess, count)
            for piece, (_, guess), count in zip(pieces, bids, counts, strict=True)
        ]

    def _guess(self, sequence: RunningSequence) -> Guess:
        left = sequence.request.max_tokens - sequence.answer_tokens - 1
        short_left = self._speculate if sequence.long else sequence.short_tokens - len(sequence.ids)
        most = min(self._speculate, left, short_left)
        if sequence.lookup is None or most <= 0:
            return NO_GUESS
        forced = tuple((sequence.forced() or ())[:most])
        return Guess(forced, sure=len(forced)) if forced else sequence.lookup.draft(most)

    def _drafted(self, sequence: RunningSequence, guess: Guess, count: int) -> StepPiece:
        while len(sequence.pages) < self._pool.pages_of(sequence.done + 1 + count) and self._pool.available:
            sequence.pages.append(self._pool.allocate())
        count = min(count, len(sequence.pages) * self._pool.positions - sequence.done - 1)
        ids = [sequence.ids[-1], *guess.ids[:count]]
        return StepPiece(sequence, sequence.done, ids, len(ids), count, guess)

    def _secure(self, sequence: RunningSequence, positions: int, pieces: Sequence[StepPiece]) -> bool:
        """Gets pages for `positions`. May preempt younger sequences, or the sequence itself."""
        planned = {piece.sequence.slot for piece in pieces}
        while len(sequence.pages) < self._pool.pages_of(positions):
            if self._pool.available:
                sequence.pages.append(self._pool.allocate())
                continue
            if self.free_restored(claimed=True):
                continue
            self._short = True
            youngest = self._running[-1]
            if youngest.slot in planned or (youngest is sequence and not pieces):
                return False
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _allotted(
        self, prompts: Sequence[RunningSequence], rows: int
    ) -> Iterator[tuple[RunningSequence, int]]:
        left = self._prompt_tokens(rows)
        if not prompts or left <= 0:
            return
        oldest = prompts[0]
        sure = min(oldest.remaining, max(1, left // _OLDEST_PART))
        for sequence in sorted(prompts, key=lambda one: one.remaining):
            if sequence is oldest:
                sure = 0
            tokens = min(sequence.remaining, left - sure)
            if tokens > 0:
                left -= tokens
                yield sequence, tokens

    def _prompt_tokens(self, rows: int) -> int:
        most = min(self._step_tokens - rows, _MOST_PAGES * self._pool.positions)
        if rows == 0 and self._sequences == 1:
            return most
        alone_s = self.cost.seconds(max(1, rows))
        if alone_s is None:
            return min(most, _UNKNOWN_TOKENS) if rows else most
        # When weights stream, even the least step takes long, and prompts are computed while it reads.
        allowed_s = _MAX_SLOWDOWN * alone_s if rows else max(_STEP_S, 2 * alone_s)
        least = _LEAST_TOKENS if rows else _ROOMY_TOKENS
        within = self.cost.rows_within(allowed_s, rows + most)
        return most if within is None else min(most, max(least, within - rows))


def _change(sequence: RunningSequence) -> TableChange | None:
    if sequence.told == len(sequence.pages):
        return None
    change = TableChange(sequence.slot, sequence.told, tuple(sequence.pages[sequence.told :]), sequence.done)
    sequence.told = len(sequence.pages)
    return change


def _feed(sequence: RunningSequence, stop: int) -> None:
    if sequence.lookup is not None:
        for token in sequence.ids[sequence.fed : stop]:
            sequence.lookup.append(token)
        sequence.fed = max(sequence.fed, stop)
