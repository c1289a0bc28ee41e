"""Publishes pages of sequences, and orders nodes to leave pages on disk and to bring them. Pure.

1. An order holds its pages until all nodes have answered it.
2. No name is in two outstanding orders.
3. An order to leave has at most `_LEFT_PAGES` pages. Those in advance hold at most half of all pages, and wait for late
   ones.
4. Only full pages of requests that allow it are kept. Others are parked.
5. A page that could not be brought is absent until it is left again.
6. A page's time is the median of the latest orders, and is forgotten after `_REFUSALS` refusals.
7. Pages on disk count as used later than those that follow.
"""

from collections import Counter, OrderedDict, deque
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
    """An order with its purpose. `chains`: all names of each sequence up to the last page of the order. The pages that
    are brought for `sequence` reach to the position `reach`."""

    order: PageOrder
    names: tuple[bytes, ...]
    chains: Sequence[Sequence[bytes]]
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
        #: Published pages to leave in advance: the names of the sequence, how many of them end with the page's, and
        #: whether to keep it.
        self._unsaved: dict[int, tuple[Sequence[bytes], int, bool]] = {}
        #: Orders to leave pages in advance, and how many pages each has.
        self._saving: dict[int, int] = {}
        #: Whether the epoch may end now, so that nothing is left in advance.
        self.halting = False
        #: Names of pages that were used, the least recent first.
        self._used: dict[bytes, None] = {}
        self._absent: OrderedDict[bytes, None] = OrderedDict()
        self._seconds = {kind: deque[float](maxlen=_MEASURED) for kind in ("leave", "bring")}
        self._refused = 0

    @property
    def outstanding(self) -> tuple[int, ...]:
        return tuple(self._taken)

    @property
    def frees(self) -> bool:
        """Whether the answers to orders that are not late will free a page."""
        orders = [one.order for one in (*self._taken.values(), *self._new)]
        pages = Counter(page for one in orders if one.number not in self._late for page in one.pages)
        return any(self._pool.holders(page) == count for page, count in pages.items())

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
                self._unsaved[page] = sequence.names, len(sequence.names), kept

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
            chain = [*names, *(name for _, name in partial)]
            self._leave(full, names, kept=self._keeps(sequence) and not own)
            self._leave(partial, chain, kept=False)

    def leave_preamble(self, sequence: RunningSequence) -> None:
        """Orders nodes to leave the page in which the preamble of a sequence ends, so that chats with the same preamble
        find it. Call this when nothing writes to the sequence's pages any more."""
        tokens, size = sequence.request.preamble_tokens, self._pool.positions
        at, rest = divmod(tokens, size)
        if self.disk is None or self._late or not rest or tokens > sequence.done or sequence.private:
            return
        # A page that is not full may end with what another client left there.
        kept = self._keeps(sequence) and at < len(sequence.names)
        if kept or self.disk.park:
            names = sequence.names[:at]
            before = names[-1] if names else self.before(sequence)
            name = self._pool.name_of(before, sequence.ids[at * size : tokens])
            self._leave([(sequence.pages[at], name)], [*names, name], kept=kept)

    def use(self, names: Iterable[bytes]) -> None:
        """Counts pages on disk as used. Each of `names` follows the previous one."""
        for name in reversed([one for one in names if self.disk is not None and self.disk.has(one)]):
            self._used.pop(name, None)
            self._used[name] = None

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
        if self._refused == _REFUSALS:  # the disk may have got faster
            self._refused = 0
            for seconds in self._seconds.values():
                seconds.clear()
        return False

    def bring(self, sequence: RunningSequence, names: Sequence[bytes], reach: int) -> None:
        """Allocates pages of `sequence` and orders nodes to bring them. All of them reach to the position `reach`."""
        pages = [(self._pool.allocate(), name) for name in names]
        sequence.pages += [page for page, _ in pages]
        chains = [(*sequence.names, *names)]
        sequence.arriving = self._order("bring", pages, chains, kept=False, sequence=sequence, reach=reach)

    def take(self) -> tuple[PageOrder, ...]:
        """Returns new orders for one message, each once."""
        while not (self.halting or self._late) and self._save():
            pass  # an order has a limit
        taken: list[PageOrder] = []
        room = MAX_NAMED_PAGES
        while self._new and len(self._taken) < MAX_ARRAY and len(self._new[0].names) <= room:
            move = self._new.popleft()
            room -= len(move.names)
            self._taken[move.order.number] = move
            taken.append(move.order)
        return tuple(taken)

    def take_used(self) -> bytes:
        """Returns names of pages that were used, for one message."""
        names = list(self._used)[:MAX_NAMED_PAGES]
        for name in names:
            del self._used[name]
        return b"".join(names)

    def under_way(self, number: int) -> Move:
        """Returns an order that was taken but not answered."""
        return self._taken[number]

    def give_up(self, move: Move) -> None:
        """Counts an order as late until it is answered."""
        self._late.add(move.order.number)
        self._miss(move.names)

    def answered(self, number: int, good: int, seconds: float) -> Move:
        """Ends an order, of which all nodes have done the first `good` pages."""
        move = self._taken.pop(number)
        order, names = move.order, move.names
        self._late.discard(number)
        self._moving.difference_update(names)
        if good and seconds:  # else nothing was moved
            self._seconds[order.kind].append(seconds / good)
        if good:
            for chain in move.chains:
                self.use(chain)
        self._saving.pop(number, None)
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

    def _leave(self, pages: Iterable[tuple[int, bytes]], chain: Sequence[bytes], *, kept: bool) -> None:
        """Orders nodes to leave held pages that are not on disk."""
        missing = [one for one in pages if not (self._has(one[1]) or one[1] in self._moving)]
        for start in range(0, len(missing), _LEFT_PAGES):
            self._order("leave", missing[start : start + _LEFT_PAGES], [chain], kept=kept)

    def _save(self) -> bool:
        """Orders to leave published pages. Returns whether it found some. A page to keep is ordered even if this node
        has it, because other nodes may lack it. Nodes write only what they lack."""
        room = max(1, self._pool.pages // 2) - sum(self._saving.values())
        chosen: list[tuple[int, bytes]] = []
        chains: dict[int, Sequence[bytes]] = {}
        store = False
        for page, (names, count, kept) in list(self._unsaved.items()):
            if len(chosen) == min(room, _LEFT_PAGES):
                break
            name = names[count - 1]
            gone = not self._pool.is_published(page, name)
            if gone or name in self._moving or (self._has(name) and not kept):
                del self._unsaved[page]
                continue
            if chosen and kept != store:
                continue
            store = kept
            chains[id(names)] = names[:count]
            chosen.append((page, name))
            del self._unsaved[page]
        if chosen:
            number = self._order("leave", chosen, [*chains.values()], kept=store)
            self._saving[number] = len(chosen)
        return bool(chosen)

    def _order(
        self,
        kind: Literal["leave", "bring"],
        pages: Sequence[tuple[int, bytes]],
        chains: Sequence[Sequence[bytes]],
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
        self._new.append(Move(order, names, chains, sequence, reach))
        return self._number
