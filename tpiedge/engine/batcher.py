"""Chooses the tokens of each step. Pure.

1. Sequences begin in arrival order, once a slot and their pages are free. A sequence waits while another one
   computes or brings a shared page.
2. If no page is free, and no order will free one, the youngest sequence is preempted. It waits first in the queue.
3. Prompts may make a step with answers `_MAX_SLOWDOWN` times as long, or touch `_EXPERTS`. A step without answers may
   take the longer of `_STEP_S` and two tokens' time, or any time for a lone sequence. The oldest prompt gets a fixed
   part of the tokens, the shortest remaining prompts the rest.
4. A page is shared once its tokens are decided and computed.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tpiedge.engine.drafting import NO_GUESS, Guess, PromptLookup, allot
from tpiedge.engine.paging import LATE_S, Disk, Move, Paging
from tpiedge.engine.sequence import RunningSequence, StepPiece
from tpiedge.engine.step_cost import StepCost
from tpiedge.kv.pages import PagePool
from tpiedge.wire.data import PageOrder, Segment, TableChange
from tpiedge.wire.fields import MAX_PAGES
from tpiedge.wire.requests import GenerationRequest

#: Most guesses for one sequence in a step: a native call takes at most these and the row before them.
MAX_DRAFTED: Final = 15
_MAX_SLOWDOWN: Final = 4.8
_STEP_S: Final = 1.0
_UNKNOWN_TOKENS: Final = 64  # most prompt tokens beside answers while costs are unknown
_LEAST_TOKENS: Final = 16  # least prompt tokens allowed beside answers
#: Prompt tokens beside answers may touch this part of the experts: fewer would read hardly less, and more often.
_EXPERTS: Final = 0.95
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
    """Plans steps, and decides which pages nodes leave on disk and bring. A sequence whose pages arrive keeps its slot.
    It is computed once they are here. The disk is used where that is predicted to be faster than computing, and always
    if the epoch halts.

    `step_tokens` limits a step's tokens. `sequences` limits the running sequences. `speculate` limits the guesses
    for one sequence in a step. `short_tokens`: see RopeConfig. The caller adds measured times to `cost`."""

    def __init__(
        self,
        pool: PagePool,
        step_tokens: int,
        sequences: int,
        speculate: int,
        short_tokens: int,
        disk: Disk | None = None,
    ) -> None:
        self._pool, self.cost, self._short_tokens = pool, StepCost(), short_tokens
        self._step_tokens, self._sequences, self._speculate = step_tokens, sequences, speculate
        self._waiting: deque[RunningSequence] = deque()
        self._running: list[RunningSequence] = []
        self._slots = list(range(sequences))  # a heap
        self._short = False  # a running sequence lacked pages in the last step
        self._paging = Paging(pool, disk)
        #: Whether a sequence waits for the answer to an order; and whether therefore no step could be planned.
        self._lacking = self._blocked = False

    @property
    def idle(self) -> bool:
        """Whether no sequence can be computed now."""
        waits = self._running or not self._waiting
        return self._blocked or (bool(waits) and not any(sequence.able for sequence in self._running))

    @property
    def awaited(self) -> bool:
        """Whether a sequence waits for the answer to an order."""
        return self._lacking or any(sequence.arriving for sequence in self._running)

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The numbers of orders that were taken but not answered."""
        return self._paging.outstanding

    @property
    def sequences(self) -> tuple[RunningSequence, ...]:
        return (*self._running, *self._waiting)

    def add(self, request: GenerationRequest) -> RunningSequence:
        """Accepts a request, which must fit the cache."""
        sequence = RunningSequence(request, [*request.prompt_ids, *request.answer_ids], self._short_tokens)
        sequence.private = not request.keep_prefix or request.prompt_scores
        if self._speculate:
            sequence.lookup = PromptLookup()
        if not sequence.private and self._pool.keys.split_shows:
            # An earlier epoch may have parked the sequence. Its pages are unlike those that this epoch computes.
            sequence.private = bool(self._paging.find(sequence, own=True)[0])
        self._waiting.append(sequence)
        self._blocked = False
        return sequence

    def take_orders(self) -> tuple[PageOrder, ...]:
        """Returns new orders for one message, each once."""
        return self._paging.take()

    def take_used(self) -> bytes:
        """Returns names for one message, each once. Nodes count these pages as used, one after the other."""
        return self._paging.take_used()

    def answered(self, number: int, good: int, seconds: float) -> None:
        """Ends an order after `seconds`. All nodes have done its first `good` pages."""
        self._arrive(self._paging.answered(number, good, seconds), good)

    def waited(self, number: int, seconds: float) -> None:
        """Gives up an order that took `seconds` so far, if it is late. It holds its pages until it is answered."""
        move = self._paging.under_way(number)
        tokens = 0 if move.sequence is None else move.reach - move.sequence.done
        if seconds > max(LATE_S, self._compute_s(tokens) or 0.0):
            self._paging.give_up(move)
            self._arrive(move, 0)

    def _arrive(self, move: Move, good: int) -> None:
        """Begins a sequence with the first `good` pages of its order."""
        self._blocked = False
        sequence, pages = move.sequence, move.order.pages
        if sequence is None or sequence.arriving != move.order.number:
            return
        done = move.reach
        if good < len(pages):
            first = sequence.pages.index(pages[good])
            self._pool.give_back(sequence.pages[first:])
            del sequence.pages[first:]
            done = first * self._pool.positions
        sequence.arriving = 0
        self._start(sequence, done, brought=done - sequence.done)
        self._paging.publish(sequence)

    def park(self) -> None:
        """Preempts all sequences, and orders nodes to leave their pages, but no other ones."""
        self._paging.halting = True
        running = tuple(self._running)
        for sequence in running:
            self._paging.park(sequence, None, halted=True)
        for sequence in reversed(running):
            self._preempt(sequence)

    def parked_names(self) -> tuple[bytes, ...]:
        """Returns names of at most MAX_PAGES pages on disk with which the next epoch can begin the waiting
        sequences."""
        names: dict[bytes, None] = {}
        own = self._pool.keys.split_shows
        for sequence in self._waiting:
            found, _ = self._paging.find(sequence, own=own)
            names |= dict.fromkeys(found[: MAX_PAGES - len(names)])
        return tuple(names)

    def end(self, sequence: RunningSequence) -> None:
        self._blocked = False
        if sequence.slot < 0:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._paging.leave_preamble(sequence)
            if sequence.private:
                self._pool.unpublish(sequence.pages)
            self._release(sequence)

    def plan(self) -> Batch | None:
        """Plans the next step. Returns None if no sequence can be computed."""
        self._lacking = self._paging.halting = False
        self._admit()
        pieces = self._pieces()
        self._blocked = not pieces and (self.awaited or bool(self.outstanding))
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
        self._paging.publish(sequence)

    def decided(self, piece: StepPiece, tokens: Sequence[int]) -> None:
        """Records the tokens drawn after `piece`; there are none within a prompt. Preempts a sequence that becomes
        long."""
        sequence, was_long = piece.sequence, piece.sequence.long
        sequence.undrawn = self._blocked = False
        sequence.done = piece.stop - piece.drafted + max(0, len(tokens) - 1)
        sequence.ids += tokens
        sequence.steps += bool(tokens)
        if tokens:
            sequence.drafting.learn(piece.guess, tokens)
        _feed(sequence, len(sequence.ids) if tokens else sequence.done)
        if sequence.long is was_long:
            self._paging.publish(sequence)
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
            needed = self._pool.pages_of(len(sequence.ids))
            if pages and pages + needed > _MOST_PAGES:
                break
            if not self._fits(sequence, found):
                self._lacking |= self._paging.frees
                break
            pages += needed
            self._begin(self._waiting.popleft(), found)
        self._waiting.extendleft(reversed(passed))

    def _found(self, sequence: RunningSequence) -> list[int] | None:
        """Returns the pages in memory with which the sequence can begin; None while another sequence computes the next
        page, or nodes move it."""
        if sequence.scanned:
            return []
        if not sequence.expected:
            sequence.expected = [*self._pool.names(sequence.ids[:-1], self._paging.before(sequence))]
        found = self._pool.find(sequence.expected)
        at = len(found)
        if at == len(sequence.expected):
            return found
        if self._paging.moving(sequence.expected[at]):
            self._lacking = True
            return None
        if any(
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
        for page in found:
            self._pool.share(page)
        sequence.pages, sequence.names = found, sequence.expected[: len(found)]
        sequence.slot = heapq.heappop(self._slots)
        self._running.append(sequence)
        start = len(found) * self._pool.positions
        self._start(sequence, start)
        self._paging.use(sequence.names)
        names, reach = self._paging.find(sequence, len(found))
        if names and self._paging.is_faster(len(names), 0, self._compute_s(reach - start)):
            self._paging.bring(sequence, names, reach)

    def _start(self, sequence: RunningSequence, done: int, brought: int = 0) -> None:
        sequence.done = done
        if sequence.answer_tokens == len(sequence.request.answer_ids):
            sequence.brought = brought
        if sequence.answer_tokens == 0:
            sequence.cached = done
        _feed(sequence, done)

    def _preempt(self, sequence: RunningSequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.appendleft(sequence)

    def _release(self, sequence: RunningSequence) -> None:
        self._pool.give_back(sequence.pages)
        heapq.heappush(self._slots, sequence.slot)
        sequence.slot, sequence.done, sequence.told, sequence.arriving = -1, 0, 0, 0
        sequence.pages, sequence.names, sequence.expected = [], [], []
        sequence.undrawn = False

    def _compute_s(self, tokens: int) -> float | None:
        rows = max(1, min(tokens, self._step_tokens))
        seconds = self.cost.seconds(rows)
        return None if seconds is None else seconds * tokens / rows

    def _pieces(self) -> list[StepPiece]:
        self._short = False
        able = [sequence for sequence in self._running if sequence.able]
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
            self._short = True
            if self._paging.frees:
                self._lacking = True
                return False
            youngest = self._running[-1]
            if youngest.slot in planned or (youngest is sequence and not pieces):
                return False
            self._paging.park(youngest, self._compute_s(youngest.done), halted=False)
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
        least = max(_LEAST_TOKENS, self.cost.rows_touching(_EXPERTS)) if rows else _ROOMY_TOKENS
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
