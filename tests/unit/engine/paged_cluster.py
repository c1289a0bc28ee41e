"""A cluster of 1 to 4 nodes as dictionaries: what each position of a page was computed from, in memory and on disk."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from tests.unit.engine.test_batch_schedules import SIZE, Engine, Model, wandering
from tpiedge.engine.batcher import Batch
from tpiedge.engine.paging import Disk
from tpiedge.engine.sequence import RunningSequence
from tpiedge.engine.step_cost import StepCost
from tpiedge.kv.pages import NameKeys
from tpiedge.wire.data import PageOrder
from tpiedge.wire.requests import GenerationRequest

#: Every file of a page; nodes without heads write it, too.
HEADER = -1
#: The scope whose requests allow kept pages.
KEPT_SCOPE = "kept"


@dataclass(frozen=True)
class Cell:
    """Keys and values of a position: the tokens up to it, and who computed them. `scope` is None for a private
    sequence; `split` is -1 if heads are of several splits."""

    text: tuple[int, ...]
    long: bool
    split: int
    request: str
    scope: str | None


Page = tuple[Cell | None, ...]
EMPTY: Page = (None,) * SIZE


@dataclass
class Machine:
    """A disk: pages by store, name and head. `fails` counts the next writes and reads that fail. `uses`: names in the
    order of use, where a page that is left is used."""

    files: dict[tuple[bool, bytes, int], Page] = field(default_factory=dict)
    fails: int = 0
    uses: list[bytes] = field(default_factory=list)

    def has(self, name: bytes) -> bool:
        return any(known == name for _, known, _ in self.files)

    def leave(self, kept: bool, name: bytes, heads: Sequence[int], page: Page) -> bool:
        if self._failed():
            return False
        self.uses.append(name)
        for head in (HEADER, *heads):
            self.files.setdefault((kept, name, head), page)
        return True

    def bring(self, name: bytes, heads: Sequence[int]) -> Page | None:
        found: list[Page] = []
        for head in (HEADER, *heads):
            stored = [kept for kept in (False, True) if (kept, name, head) in self.files]
            if not stored:
                return None
            if self._failed():
                del self.files[stored[0], name, head]
                return None
            found.append(self.files[stored[0], name, head])
        return tuple(map(_joined, zip(*found, strict=True)))

    def _failed(self) -> bool:
        self.fails = max(0, self.fails - 1)
        return self.fails > 0


def _joined(cells: tuple[Cell | None, ...]) -> Cell | None:
    """Joins the cells that a page's files have for a position. Beyond a partial page's tokens they may differ."""
    if None in cells or len({(cell.text, cell.long) for cell in cells if cell is not None}) > 1:
        return None
    splits = {cell.split for cell in cells if cell is not None}
    return cells[0] if cells[0] is None or len(splits) == 1 else replace(cells[0], split=-1)


@dataclass(eq=False)
class Order:
    """An order that nodes obey one after the other. `good` has the ranks' numbers of pages that are done."""

    order: PageOrder
    good: dict[int, int] = field(default_factory=dict)

    @property
    def names(self) -> list[bytes]:
        data = self.order.names
        return [data[start : start + 16] for start in range(0, len(data), 16)]


@dataclass(frozen=True)
class Plan:
    """The machine and the heads of each rank."""

    ranks: tuple[tuple[int, tuple[int, ...]], ...]
    pages: int = 8
    keep: bool = True
    park: bool = True
    sequences: int = 3
    speculate: int = 0
    grain: int = 0
    short_tokens: int = 1000


class Cluster:
    """Epochs of a cluster. `split_shows`: pages' bits depend on the split. A request has been told `answers[its id]`
    tokens."""

    def __init__(
        self,
        plan: Plan,
        *,
        machines: int = 4,
        split_shows: bool = False,
        model: Model = wandering,
        cost: Callable[[], StepCost] = StepCost,
    ):
        self.cost = cost
        self.machines = [Machine() for _ in range(machines)]
        self.split_shows, self.model = split_shows, model
        self.split = 0
        self.sequences: dict[str, RunningSequence] = {}
        self.ended: dict[str, RunningSequence] = {}
        self.preambles: set[bytes] = set()
        self.start(plan)

    def start(self, plan: Plan, *, killed: bool = False) -> None:
        """Begins an epoch. Requests that have not ended are submitted again. `killed`: parked pages are lost."""
        self.plan = plan
        self.split += 1
        if killed:
            for machine in self.machines:
                for key in [key for key in machine.files if not key[0]]:
                    del machine.files[key]
        disk = Disk(self.machines[plan.ranks[0][0]].has, plan.keep, plan.park)
        shared = b"split %d" % self.split if self.split_shows else b"own"
        self.engine = Engine(
            plan.pages,
            sequences=plan.sequences,
            speculate=plan.speculate,
            grain=plan.grain,
            model=self.model,
            short_tokens=plan.short_tokens,
            keys=NameKeys(shared, b"own"),
            disk=disk,
            cost=self.cost(),
        )
        self.batcher, self.pool = self.engine.batcher, self.engine.pool
        self.memories = [[list(EMPTY) for _ in range(plan.pages)] for _ in plan.ranks]
        self.tables: defaultdict[int, list[int]] = defaultdict(list)
        self.lengths: defaultdict[int, int] = defaultdict(int)
        self.orders: list[Order] = []
        before, self.sequences = self.sequences, {}
        for sequence in before.values():
            answer = tuple(sequence.ids[sequence.prompt_tokens :])
            self.add(replace(sequence.request, answer_ids=answer))

    def add(self, request: GenerationRequest) -> RunningSequence:
        tokens, before = request.prompt_ids[: request.preamble_tokens], self.pool.scope_name(request.scope)
        *_, before = before, *self.pool.names(tokens, before)
        self.preambles.add(self.pool.name_of(before, tokens[len(tokens) // SIZE * SIZE :]))
        self.sequences[request.id] = self.batcher.add(request)
        return self.sequences[request.id]

    def ask(
        self,
        name: str,
        text: Sequence[int],
        count: int = 3,
        scope: str = KEPT_SCOPE,
        *,
        keep: bool = True,
        preamble: int = 0,
    ) -> RunningSequence:
        kept = scope == KEPT_SCOPE
        request = GenerationRequest(
            name, tuple(text), count, keep_prefix=keep, scope=scope, keep_context=kept
        )
        return self.add(replace(request, preamble_tokens=preamble))

    def step(self) -> Batch | None:
        """Takes a step and the orders after it."""
        batch = self.batcher.plan()
        if batch is not None:
            self._compute(batch)
            for piece in batch.pieces:
                self.batcher.decided(piece, self.engine.drawn(piece) if piece.draws else ())
            for sequence in list(self.sequences.values()):
                if sequence.answer_tokens == sequence.request.max_tokens:
                    self.end(sequence)
        self.take()
        self.check()
        return batch

    def take(self) -> list[Order]:
        new = [Order(order) for order in self.batcher.take_orders()]
        used = self.batcher.take_used()
        for index, _ in self.plan.ranks:
            self.machines[index].uses += [used[start : start + 16] for start in range(0, len(used), 16)]
        for order in new:
            self._check_order(order)
        self.orders += new
        assert [one.order.number for one in self.orders] == sorted(self.batcher.outstanding)
        return new

    def end(self, sequence: RunningSequence) -> None:
        self.batcher.end(sequence)
        self.ended[sequence.request.id] = self.sequences.pop(sequence.request.id)

    def obey(self, order: Order, rank: int) -> None:
        """Lets a node do all of an order, once."""
        if rank in order.good:
            return
        index, heads = self.plan.ranks[rank]
        machine, memory = self.machines[index], self.memories[rank]
        done: list[bool] = []
        for page, name in zip(order.order.pages, order.names, strict=True):
            if order.order.kind == "leave":
                done.append(machine.leave(order.order.kept, name, heads, tuple(memory[page])))
            else:
                found = machine.bring(name, heads)
                memory[page] = list(found or EMPTY)
                done.append(found is not None)
        order.good[rank] = sum(takewhile(bool, done))

    def answer(self, order: Order, seconds: float = 0.0) -> None:
        """Lets all nodes do an order and tells the batcher."""
        for rank in range(len(self.plan.ranks)):
            self.obey(order, rank)
        self.orders.remove(order)
        self.batcher.answered(order.order.number, min(order.good.values()), seconds)
        self.check()

    def answer_all(self) -> None:
        """Answers until no order is outstanding."""
        while self.orders or self.take():
            self.answer(self.orders[0])

    def halt(self) -> tuple[bytes, ...]:
        self.batcher.park()
        self.answer_all()
        assert self.pool.held == 0, "orders that are answered hold no page"
        return self.batcher.parked_names()

    def scatter(self, names: Sequence[bytes]) -> None:
        """Copies parked pages to all machines, as a planned change does it."""
        files: dict[tuple[bytes, int], Page] = {}
        for machine in self.machines:
            for (_, name, head), page in machine.files.items():
                files.setdefault((name, head), page)
        for machine in self.machines:
            for (name, head), page in files.items():
                if name in names:
                    machine.files.setdefault((False, name, head), page)

    def run(self, most: int = 3000) -> None:
        """Runs until every request has ended. Orders are answered only when no step can be computed."""
        for _ in range(most):
            if not self.sequences:
                break
            batch = self.step()
            if batch is None and self.batcher.idle:
                late = self.batcher._paging._late  # is asked for, too, but seldom
                assert self.batcher.awaited or late, "nothing can go on, and no answer is awaited"
                assert self.orders, "an answer is awaited, but there is no order"
                self.answer(self.orders[0])
        assert not self.sequences, "a request starves"
        self.answer_all()
        assert self.pool.held == 0

    def _compute(self, batch: Batch) -> None:
        self.engine.check(batch)
        for change in batch.tables:
            self.tables[change.slot][change.kept :] = change.pages
            self.lengths[change.slot] = change.filled
        for piece in batch.pieces:
            assert piece.start <= self.lengths[piece.sequence.slot], "a hole"
            self.lengths[piece.sequence.slot] = piece.stop
        ordered = {page for one in self.orders for page in one.order.pages}
        assert not ordered & {*batch.discarded}, "the memory of a page under an order is freed"
        for memory in self.memories:
            for page in batch.discarded:
                memory[page] = list(EMPTY)
            for piece in batch.pieces:
                one = piece.sequence
                text = [*one.ids[: piece.start], *piece.ids]
                table = self.tables[one.slot]
                for position in range(piece.start, piece.stop):
                    page = table[position // SIZE]
                    assert page not in ordered, "a page under an order is written"
                    scope = None if one.private else one.request.scope
                    cell = Cell(tuple(text[: position + 1]), one.long, self.split, one.request.id, scope)
                    memory[page][position % SIZE] = cell
                for position in range(piece.stop):
                    cells = memory[table[position // SIZE]]
                    self._check_cell(one, tuple(text[: position + 1]), cells[position % SIZE])

    def _check_cell(self, one: RunningSequence, text: tuple[int, ...], cell: Cell | None) -> None:
        assert cell is not None, "an empty or torn page is read"
        assert (cell.text, cell.long) == (text, one.long), "a stale or foreign page is read"
        if cell.request != one.request.id:
            assert cell.scope == one.request.scope, "a page of another scope, or of a private request"
            assert one.request.keep_prefix
            assert not one.request.prompt_scores
        if self.split_shows and not one.private:
            assert cell.split == self.split, "a page of another split"

    def _check_order(self, order: Order) -> None:
        wanted = order.order
        assert len(order.names) == len(wanted.pages) > 0
        assert wanted.kind == "bring" or len(wanted.pages) <= 16
        others = {name for one in self.orders for name in one.names}
        assert not others & {*order.names}, "a name is in two orders"
        if wanted.kind == "bring":
            assert len({*wanted.pages} - {page for one in self.orders for page in one.order.pages}) == len(
                wanted.pages
            ), "a page in two orders is overwritten"
        for page, name in zip(wanted.pages, order.names, strict=True) if wanted.kept else ():
            cells = [cell for cell in self.memories[0][page] if cell is not None]
            assert len(cells) == SIZE, "a partial page is kept"
            assert self.plan.keep
            assert {(cell.scope, cell.long) for cell in cells} == {(KEPT_SCOPE, False)}
            *_, before, full = [
                (scope := self.pool.scope_name(KEPT_SCOPE)),
                *self.pool.names(cells[-1].text, scope),
            ]
            partial = self.pool.partial_names(cells[-1].text[-SIZE:], before)
            assert name == full or name in self.preambles.intersection(partial)

    def check(self) -> None:
        running = self._running()
        held = {page for one in running for page in one.pages}
        ordered = {page for one in self.orders for page in one.order.pages}
        assert self.pool.held >= len(held | ordered), "a page that is used is not held"
        assert len({one.slot for one in running}) == len(running) <= self.plan.sequences
        for one in running:
            assert len({*one.pages}) == len(one.pages)
            assert len(one.names) * SIZE <= one.done <= min(len(one.pages) * SIZE, len(one.ids))
        for one in self.batcher.sequences[len(running) :]:
            assert (one.slot, one.pages, one.done, one.arriving) == (-1, [], 0, 0)

    def _running(self) -> list[RunningSequence]:
        return list(takewhile(lambda one: one.slot >= 0, self.batcher.sequences))


def splits(machines: Sequence[int], heads: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields each of `machines` with its part of the heads."""
    for rank, machine in enumerate(machines):
        yield machine, tuple(range(rank * heads // len(machines), (rank + 1) * heads // len(machines)))
