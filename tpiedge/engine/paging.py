"""Publishes the pages of sequences, and orders nodes to leave pages on their disks and to bring them. Pure.

1. An order holds its pages until all nodes have answered it, even if its sequence ends.
2. No name is in two outstanding orders.
3. An order to leave has at most `_LEFT_PAGES` pages. One order at a time leaves published pages in advance.
4. Only full pages of requests that allow it are kept. Other pages are parked.
5. A page that could not be brought counts as absent until it is left again.
6. A page's time is the median of the latest orders. It is forgotten after `_REFUSALS` refusals: a disk may get faster.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final, Literal

from tpiedge.engine.sequence import RunningSequence
from tpiedge.kv.pages import PagePool
from tpiedge.wire.data import PageOrder
from tpiedge.wire.fields import MAX_ARRAY, MAX_NAMED_PAGES

#: An order is late after this time, and after the time in which its pages can be computed. Until it is answered,
#: nothing waits for it, no other page is brought, and only a halt parks pages.
LATE_S: Final = 10.0
_LEFT_PAGES: Final = 16
_MEASURED: Final = 7
_REFUSALS: Final = 16
_MOST_ABSENT: Final = 4096


@dataclass(frozen=True)
class Disk:
    """Rank 0's view of the nodes' disks. `has` tells whether its own disk has a page, and costs no I/O. `keep`, `park`:
    whether every machine has room for kept pages, and for parked ones."""

    has: Callable[[bytes], bool]
    keep: bool
    park: bool


@dataclass(frozen=True, eq=False)
class Move:
    """An order with its purpose. The pages that are brought for `sequence` reach to the position `reach`."""

    order: PageOrder
    names: tuple[bytes, ...]
    sequence: RunningSequence | None = None
    reach: int = 0


class Paging:
    """Publishes, leaves and brings pages. If `disk` is None, no page is on disk."""

    def __init__(self, pool: PagePool, disk: Disk | None) -> None:
        self._pool, self.disk = pool, disk
        self._number = 0
        self._new: deque[Move] = deque()
        self._taken: dict[int, Move] = {}
        self._late: set[int] = set()
        self._moving: set[bytes] = set()
        #: Published pages to leave in advance, with their names, and whether to keep them.
        self._unsaved: dict[int, tuple[bytes, bool]] = {}
        self._saving = 0
        self._absent: OrderedDict[bytes, None] = OrderedDict()
        self._seconds = {kind: deque[float](maxlen=_MEASURED) for kind in ("leave", "bring")}
        self._refused = 0

    @property
    def outstanding(self) -> tuple[int, ...]:
        return tuple(self._taken)

    @property
    def frees(self) -> bool:
        """Whether the answer to an order that is not late will free a page."""
        moves = [one for one in (*self._taken.values(), *self._new) if one.order.number not in self._late]
        return any(self._pool.held_once(page) for move in moves for page in move.order.pages)

    def moving(self, name: bytes) -> bool:
        """Whether nodes move the page, and will soon have done so."""
        return name in self._moving and name not in self._absent

    def before(self, sequence: RunningSequence, *, own: bool = False) -> bytes:
        """Returns the name before the first page of a sequence, or before its `own` one, which no other can find."""
        own = own or sequence.private
        return self._pool.scope_name(sequence.scope_of(own=own), own=own)

    def publish(self, sequence: RunningSequence) -> None:
        """Publishes the full pages that are computed or brought."""
        size = self._pool.positions
        while not sequence.scanned and (len(sequence.names) + 1) * size <= sequence.done:
            at = len(sequence.names)
            page, tokens = sequence.pages[at], sequence.ids[at * size : (at + 1) * size]
            name = self._pool.name_of(sequence.names[-1] if at else self.before(sequence), tokens)
            self._pool.publish(page, name)
            sequence.names.append(name)
            kept = self._keeps(sequence)
            if self.disk is not None and not sequence.private and (kept or self.disk.park):
                self._unsaved[page] = name, kept

    def find(
        self, sequence: RunningSequence, found: int = 0, *, own: bool = False
    ) -> tuple[list[bytes], int]:
        """Returns the names of pages on disk that continue the first `found` pages, and the position that they reach.
        Only the last page may be partial."""
        names: list[bytes] = []
        size = self._pool.positions
        if self.disk is None or sequence.scanned:
            return names, found * size
        before = sequence.names[found - 1] if found else self.before(sequence, own=own)
        ids = sequence.ids[found * size : -1]
        for name in self._pool.names(ids, before):
            if len(names) == MAX_NAMED_PAGES - 1 or not self._has(name):
                break
            names.append(name)
        reach = (found + len(names)) * size
        partial = [*self._pool.partial_names(ids[len(names) * size :], names[-1] if names else before)]
        for count in range(len(partial), 0, -1):
            if self._has(partial[count - 1]):
                return [*names, partial[count - 1]], reach + count
        return names, reach

    def park(self, sequence: RunningSequence, compute_s: float | None, *, halted: bool) -> None:
        """Orders nodes to leave the pages of a sequence that stops, unless to compute them takes less time. `halted`:
        the epoch ends, and a page's name must not depend on the split."""
        done, size = sequence.done, self._pool.positions
        if self.disk is None or sequence.scanned or not (halted or self.disk.park):
            return
        own = halted and self._pool.keys.split_shows and not sequence.private
        before = self.before(sequence, own=own)
        names = [*self._pool.names(sequence.ids[:done], before)] if own else sequence.names
        full = list(zip(sequence.pages, names, strict=False))
        partial: list[tuple[int, bytes]] = []
        if done % size:
            tokens = sequence.ids[done - done % size : done]
            partial.append(
                (sequence.pages[len(full)], self._pool.name_of(names[-1] if full else before, tokens))
            )
        new = sum(not self._has(name) for _, name in (*full, *partial))
        if halted or self.is_faster(len(full) + len(partial), new, compute_s):
            self._leave(full, kept=self._keeps(sequence) and not own)
            self._leave(partial, kept=False)

    def is_faster(self, bring: int, leave: int, compute_s: float | None) -> bool:
        """Whether so many pages are predicted to move within `compute_s` seconds. Unknown times count as fast."""
        if self._late:
            return False
        counts = (("bring", bring), ("leave", leave))
        moved_s = sum(
            count * median_low(self._seconds[kind]) for kind, count in counts if self._seconds[kind]
        )
        if compute_s is None or moved_s < compute_s:
            return True
        self._refused += 1
        if self._refused == _REFUSALS:
            self._refused = 0
            for seconds in self._seconds.values():
                seconds.clear()
        return False

    def bring(self, sequence: RunningSequence, names: Sequence[bytes], reach: int) -> None:
        """Allocates pages of `sequence` and orders nodes to bring them. All of them reach to the position `reach`."""
        pages = [(self._pool.allocate(), name) for name in names]
        sequence.pages += [page for page, _ in pages]
        sequence.arriving = self._order("bring", pages, kept=False, sequence=sequence, reach=reach)

    def forget_unsaved(self) -> None:
        """Drops the pages that wait to be left in advance."""
        self._unsaved.clear()

    def take(self) -> tuple[PageOrder, ...]:
        """Returns new orders for one message, each once."""
        if not self._saving:
            self._save()
        taken: list[PageOrder] = []
        room = MAX_NAMED_PAGES
        while self._new and len(self._taken) < MAX_ARRAY and len(self._new[0].names) <= room:
            move = self._new.popleft()
            room -= len(move.names)
            self._taken[move.order.number] = move
            taken.append(move.order)
        return tuple(taken)

    def under_way(self, number: int) -> Move:
        """Returns an order that was taken but not answered."""
        return self._taken[number]

    def give_up(self, move: Move) -> None:
        """Counts an order as late until it is answered."""
        self._late.add(move.order.number)
        if move.order.kind == "bring":
            self._miss(move.names)

    def answered(self, number: int, good: int, seconds: float) -> Move:
        """Ends an order, of which all nodes have done the first `good` pages."""
        move = self._taken.pop(number)
        order, names = move.order, move.names
        self._late.discard(number)
        self._moving.difference_update(names)
        if good:
            self._seconds[order.kind].append(seconds / good)
        if number == self._saving:
            self._saving = 0
        for name in names[:good]:
            self._absent.pop(name, None)
        if order.kind == "bring":
            partial = good == len(names) and move.reach % self._pool.positions > 0
            # A private sequence publishes its pages itself, because it also withdraws them.
            if move.sequence is not None and not move.sequence.private:
                for page, name in list(zip(order.pages, names, strict=True))[: good - partial]:
                    self._pool.publish(page, name)
            self._miss(names[good : good + 1])
        self._pool.give_back(order.pages)
        return move

    def _miss(self, names: Iterable[bytes]) -> None:
        self._absent.update(dict.fromkeys(names))
        while len(self._absent) > _MOST_ABSENT:
            self._absent.popitem(last=False)

    def _has(self, name: bytes) -> bool:
        known = name not in self._moving and name not in self._absent
        return self.disk is not None and known and self.disk.has(name)

    def _keeps(self, sequence: RunningSequence) -> bool:
        """Whether full pages may stay on disk after the master ends."""
        disk, allowed = self.disk, sequence.request.keep_context
        return disk is not None and disk.keep and allowed and not (sequence.private or sequence.long)

    def _leave(self, pages: Iterable[tuple[int, bytes]], *, kept: bool) -> None:
        """Orders nodes to leave held pages that are not on disk."""
        missing = [one for one in pages if not (self._has(one[1]) or one[1] in self._moving)]
        for start in range(0, len(missing), _LEFT_PAGES):
            self._order("leave", missing[start : start + _LEFT_PAGES], kept=kept)

    def _save(self) -> None:
        """Orders to leave published pages. They may hold a quarter of the available pages."""
        room = max(1, self._pool.available // 4)
        chosen: list[tuple[int, bytes]] = []
        store = False
        for page, (name, kept) in list(self._unsaved.items()):
            gone = not self._pool.is_published(page, name)
            if gone or self._has(name) or name in self._moving:
                del self._unsaved[page]
                continue
            idle = self._pool.idle_among([page])
            if idle > room or (chosen and kept != store):
                continue
            room -= idle
            store = kept
            chosen.append((page, name))
            del self._unsaved[page]
            if len(chosen) == _LEFT_PAGES:
                break
        if chosen:
            self._saving = self._order("leave", chosen, kept=store)

    def _order(
        self,
        kind: Literal["leave", "bring"],
        pages: Sequence[tuple[int, bytes]],
        *,
        kept: bool,
        sequence: RunningSequence | None = None,
        reach: int = 0,
    ) -> int:
        self._number += 1
        names = tuple(name for _, name in pages)
        for page, _ in pages:
            self._pool.share(page)
        self._moving.update(names)
        numbers = tuple(page for page, _ in pages)
        order = PageOrder(self._number, kind, kept, numbers, b"".join(names))
        self._new.append(Move(order, names, sequence, reach))
        return self._number
