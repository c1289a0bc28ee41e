"""Pages that are away. `paged_cluster.py` checks at each step that every position is of the right tokens."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.engine.paged_cluster import HEADER, KEPT_SCOPE, Cluster, Order, Plan, splits
from tests.unit.engine.test_batch_schedules import COSTS, KEYS, MODELS, cost_of
from tpiedge.engine.paging import LATE_S, Disk, Paging
from tpiedge.engine.sequence import RunningSequence
from tpiedge.kv.pages import PagePool
from tpiedge.wire.requests import GenerationRequest

HEADS = 3
ONE = Plan(((0, (0, 1, 2)),))
TWO = Plan(((0, (0,)), (1, (1, 2))))
NEITHER = replace(TWO, keep=False, park=False)
TEXT = [*range(1, 11)]


def kinds(orders: list[Order]) -> list[tuple[str, bool, int]]:
    return [(one.order.kind, one.order.kept, len(one.order.pages)) for one in orders]


def finished(cluster: Cluster, name: str, text: list[int], count: int = 3) -> RunningSequence:
    one = cluster.ask(name, text, count)
    cluster.run()
    assert one.ids == cluster.engine.answer(one)
    return one


def test_full_pages_are_left_once_in_advance_and_found_after_a_restart() -> None:
    cluster = Cluster(TWO)
    first = cluster.ask("a", TEXT)
    cluster.step()
    assert kinds(cluster.orders) == [("leave", True, 2)]
    cluster.run()
    assert len({name for _, name, _ in cluster.machines[1].files}) == 3, "the page of the answer, too"
    finished(cluster, "b", TEXT)
    assert cluster.take() == []
    cluster.start(TWO, killed=True)
    again = cluster.ask("c", TEXT)
    cluster.step()
    assert kinds(cluster.orders) == [("bring", False, 2)]
    assert cluster.batcher.idle
    assert cluster.batcher.awaited
    cluster.answer(cluster.orders[0])
    assert not cluster.batcher.idle
    assert (again.cached, again.brought, again.done) == (8, 8, 8)
    cluster.run()
    assert again.ids == first.ids


@pytest.mark.parametrize(
    ("plan", "scope", "left"),
    [
        (ONE, KEPT_SCOPE, [("leave", True, 2)]),
        (replace(ONE, keep=False), KEPT_SCOPE, [("leave", False, 2)]),
        (ONE, "other", [("leave", False, 2)]),
        (replace(ONE, park=False), "other", []),
        (NEITHER, KEPT_SCOPE, []),
        (replace(ONE, short_tokens=5), KEPT_SCOPE, [("leave", False, 2)]),
        (replace(ONE, short_tokens=5, park=False), KEPT_SCOPE, []),
    ],
)
def test_store_depends_on_consent_and_request(
    plan: Plan, scope: str, left: list[tuple[str, bool, int]]
) -> None:
    cluster = Cluster(plan)
    cluster.ask("a", TEXT, scope=scope)
    cluster.step()
    assert kinds(cluster.orders) == left


@pytest.mark.parametrize(("keep", "scores"), [(False, False), (True, True)])
def test_private_pages_are_not_left_in_advance_and_are_forgotten_at_the_end(keep: bool, scores: bool) -> None:
    cluster = Cluster(ONE)
    request = GenerationRequest("a", tuple(TEXT), 6, scope=KEPT_SCOPE, keep_context=True)
    one = cluster.add(replace(request, keep_prefix=keep, prompt_scores=scores))
    cluster.step()
    names = [*cluster.pool.names(TEXT, cluster.pool.scope_name("a", own=True))]
    assert cluster.pool.find(names) == one.pages[:2]
    assert cluster.orders == []
    cluster.batcher.park()
    assert kinds(cluster.take()) == [("leave", False, 2), ("leave", False, 1)], "they are parked"
    cluster.run()
    assert cluster.pool.find(names) == []


def test_nothing_waits_for_a_disk_that_hangs() -> None:
    cluster = Cluster(ONE)
    finished(cluster, "a", TEXT)
    finished(cluster, "e", TEXT[::-1])
    cluster.start(ONE, killed=True)
    again, other = cluster.ask("b", TEXT), cluster.ask("c", [*TEXT, 11])
    cluster.step()
    (hung,) = cluster.orders
    cluster.batcher.waited(hung.order.number, LATE_S)
    assert cluster.batcher.idle
    cluster.batcher.waited(hung.order.number, LATE_S + 1)
    while cluster.sequences:
        assert cluster.step() is not None, "a sequence waits"
    assert (again.cached, again.brought, other.cached) == (0, 0, 8)
    cluster.ask("d", TEXT[::-1])
    cluster.step()
    assert [one for one in cluster.orders if one.order.kind == "bring"] == [hung], (
        "another order may hang, too"
    )
    cluster.run()
    assert cluster.pool.held == 0


def test_late_order_to_leave_pages_stops_nobody() -> None:
    cluster = Cluster(ONE)
    cluster.ask("a", TEXT[:8], count=1)
    cluster.step()
    (hung,) = cluster.orders
    for name in ("b", "c"):
        cluster.ask(name, [*name.encode(), *TEXT[:5]], count=10, scope="other")
    while cluster.step() is not None:
        pass
    assert len(cluster.sequences) == 2, "pages are short"
    assert cluster.batcher.awaited
    cluster.batcher.waited(hung.order.number, LATE_S + 1)
    while cluster.sequences:
        assert cluster.step() is not None, "a sequence waits"
    cluster.answer_all()
    assert cluster.pool.held == 0


def test_nobody_waits_for_a_page_in_a_late_order_to_leave_it() -> None:
    pool = PagePool(4, 1, KEYS)
    paging = Paging(pool, Disk(lambda _: False, keep=False, park=True))
    one = RunningSequence(GenerationRequest("r", (1, 2), 1), [1, 2], 10**6, done=2)
    one.pages, one.names = [pool.allocate(), pool.allocate()], [b"1" * 16, b"2" * 16]
    paging.park(one, None, halted=False)
    [order] = paging.take()
    assert paging.moving(one.names[0])
    paging.give_up(paging.under_way(order.number))
    assert not paging.moving(one.names[0])


def test_pages_of_a_late_order_are_awaited_without_work() -> None:
    cluster = Cluster(replace(ONE, pages=6))
    cluster.ask("a", TEXT[:8], count=1)
    cluster.step()
    (hung,) = cluster.orders
    cluster.batcher.waited(hung.order.number, LATE_S + 1)
    cluster.ask("b", [*range(20, 42)])
    assert cluster.step() is None
    assert cluster.batcher.idle
    cluster.answer(hung)
    assert not cluster.batcher.idle
    cluster.run()


def test_page_that_one_node_lacks_is_computed_and_left_again() -> None:
    cluster = Cluster(TWO)
    finished(cluster, "a", TEXT)
    disk = cluster.machines[1].files
    _, lost = cluster.pool.names(TEXT, cluster.pool.scope_name(KEPT_SCOPE))
    for head in (HEADER, 1, 2):
        del disk[True, lost, head]
    cluster.start(TWO, killed=True)
    again = cluster.ask("b", TEXT)
    cluster.step()
    cluster.answer(cluster.orders[0])
    assert (again.cached, again.brought, again.done, len(again.pages)) == (4, 4, 4, 1)
    cluster.step()
    assert kinds(cluster.orders) == [("leave", True, 2)]
    cluster.run()
    assert (True, lost, 1) in disk
    finished(cluster, "evicts", [9] * 31, 1)
    cluster.ask("c", TEXT)
    cluster.step()
    assert kinds(cluster.orders)[-1] == ("bring", False, 2)


def test_name_that_could_not_be_brought_is_not_tried_again() -> None:
    cluster = Cluster(TWO)
    finished(cluster, "a", TEXT)
    cluster.machines[1].files.clear()
    cluster.start(NEITHER)
    finished(cluster, "b", TEXT)
    cluster.start(replace(NEITHER, pages=4))
    cluster.ask("c", TEXT)
    cluster.step()
    assert kinds(cluster.orders) == [("bring", False, 2)]
    cluster.answer(cluster.orders[0])
    cluster.run()
    finished(cluster, "d", [9] * 15, 1)
    cluster.ask("e", TEXT)
    cluster.step()
    assert cluster.orders == []
    cluster.run()


def test_chats_with_the_same_preamble_share_it_amid_a_page() -> None:
    cluster = Cluster(TWO)
    cluster.ask("a", [*TEXT[:6], 20], preamble=6)
    cluster.run()
    cluster.start(TWO, killed=True)
    other = cluster.ask("b", [*TEXT[:6], 30, 31], preamble=6)
    cluster.step()
    cluster.answer_all()
    assert (other.cached, other.brought, other.done) == (6, 6, 6)
    cluster.run()
    assert other.ids == cluster.engine.answer(other)
    cluster.ask("c", [*TEXT[:6], 40], preamble=6)
    cluster.run()
    assert cluster.ended["c"].cached == 6


@pytest.mark.parametrize(
    ("plan", "scope", "preamble", "left"),
    [
        (ONE, KEPT_SCOPE, 6, [("leave", True, 1)]),
        (ONE, "other", 6, [("leave", False, 1)]),
        (NEITHER, KEPT_SCOPE, 6, []),
        (ONE, KEPT_SCOPE, 8, []),
        (ONE, KEPT_SCOPE, 9, [("leave", False, 1)]),
        (replace(ONE, park=False), KEPT_SCOPE, 9, []),
        (ONE, KEPT_SCOPE, 11, []),
    ],
)
def test_preamble_is_left_where_its_request_allows_once_it_is_computed(
    plan: Plan, scope: str, preamble: int, left: list[tuple[str, bool, int]]
) -> None:
    cluster = Cluster(plan)
    one = cluster.ask("a", TEXT, scope=scope, preamble=preamble)
    cluster.step()
    cluster.answer_all()
    cluster.end(one)
    cluster.take()
    assert kinds(cluster.orders) == left


def test_page_in_two_orders_is_free_after_both() -> None:
    cluster = Cluster(replace(ONE, pages=3))
    one = cluster.ask("a", TEXT[:7], preamble=2)
    cluster.step()
    cluster.end(one)
    cluster.take()
    assert [order.order.pages for order in cluster.orders] == [(0,), (0,)]
    cluster.ask("b", [9] * 9)
    assert cluster.step() is None
    assert cluster.batcher.awaited
    cluster.run()


def test_pages_count_as_used_later_than_those_that_follow() -> None:
    """The end of a prefix is evicted first, because the rest is of use without it."""
    plan = replace(TWO, pages=40)
    cluster = Cluster(plan)
    text = [*range(101)]
    names = [*cluster.pool.names(text, cluster.pool.scope_name(KEPT_SCOPE))]

    def latest() -> list[list[bytes]]:
        return [list(dict.fromkeys(reversed(one.uses)))[: len(names)] for one in cluster.machines[:2]]

    finished(cluster, "left", text, 1)
    assert latest() == [names, names]
    for name in ("found in memory", "brought"):
        finished(cluster, f"before {name}", [9] * 9, 1)
        assert names[0] not in latest()[0][:1]
        finished(cluster, name, text, 1)
        assert latest() == [names, names], name
        cluster.start(plan, killed=True)


def test_page_that_another_node_has_parked_is_kept() -> None:
    cluster = Cluster(TWO)
    finished(cluster, "a", TEXT)
    files = cluster.machines[1].files
    for kept, name, head in list(files):
        files[False, name, head] = files.pop((kept, name, head))  # its heads travelled
    cluster.start(TWO)
    finished(cluster, "b", TEXT)
    assert {(True, name, head) for _, name, head in files} <= files.keys()


def test_halt_that_is_resumed_leaves_what_was_not_left_yet() -> None:
    cluster = Cluster(replace(TWO, pages=32))
    one = cluster.ask("a", [*range(100)], 9)
    cluster.step()
    cluster.step()
    cluster.end(one)
    assert kinds(cluster.orders) == [("leave", True, 16)]
    cluster.halt()
    pages = {name for _, name, _ in cluster.machines[0].files}
    cluster.step()
    cluster.answer_all()
    assert (len(pages), len({name for _, name, _ in cluster.machines[0].files})) == (16, 25)


def test_an_order_is_for_one_store() -> None:
    cluster = Cluster(ONE)
    cluster.ask("a", TEXT)
    cluster.ask("b", TEXT, scope="other")
    cluster.step()
    assert kinds(cluster.orders) == [("leave", True, 2), ("leave", False, 2)]


def test_preempted_sequence_leaves_its_partial_page_and_brings_it() -> None:
    cluster = Cluster(replace(TWO, pages=4, keep=False))
    old, young = cluster.ask("old", [1] * 7, 6), cluster.ask("young", [2] * 6, 6)
    cluster.step()
    while young.slot >= 0:
        cluster.answer_all()
        cluster.step()
    assert len(young.ids) == 8
    assert kinds(cluster.orders) == [("leave", False, 1)], "the full page is on disk"
    assert not cluster.batcher.awaited, "the old one has taken a page"
    while young.slot < 0:
        cluster.answer_all()
        cluster.step()
    assert young.arriving
    cluster.answer_all()
    assert (young.done, young.cached) == (7, 0)
    cluster.run()
    assert young.ids == cluster.engine.answer(young)
    assert old.ids == cluster.engine.answer(old)


def test_sequence_waits_for_the_page_that_a_preempted_one_leaves() -> None:
    cluster = Cluster(replace(TWO, pages=3))
    old, young = cluster.ask("old", [1] * 7), cluster.ask("young", [2] * 2, 6)
    cluster.step()
    cluster.step()
    cluster.answer_all()
    assert cluster.step() is None
    assert (old.slot, young.slot) == (0, -1)
    assert cluster.batcher.idle
    assert cluster.batcher.awaited
    cluster.answer_all()
    assert cluster.step() is not None
    cluster.run()
    assert young.ids == cluster.engine.answer(young)


def test_request_waits_for_pages_that_are_left_in_advance_after_a_cancel() -> None:
    cluster = Cluster(replace(TWO, pages=3))
    one = cluster.ask("a", TEXT)
    cluster.step()
    cluster.end(one)
    cluster.ask("b", [9] * 9)
    assert cluster.step() is None
    assert cluster.batcher.idle
    assert cluster.batcher.awaited
    cluster.answer_all()
    assert cluster.step() is not None


def test_preempted_sequence_leaves_nothing_where_a_machine_has_no_room() -> None:
    cluster = Cluster(replace(TWO, pages=3, park=False, keep=False))
    cluster.ask("old", [1] * 7)
    young = cluster.ask("young", [2] * 2, 6)
    cluster.step()
    cluster.step()
    assert cluster.step() is not None
    assert (young.slot, cluster.orders) == (-1, [])


def test_prompt_whose_scores_are_wanted_is_computed_whole() -> None:
    cluster = Cluster(replace(ONE, pages=20))
    cluster.machines[0].has = lambda _: True  # type: ignore[method-assign]
    cluster.start(cluster.plan)
    cluster.add(GenerationRequest("a", tuple(range(70)), 1, keep_prefix=True, prompt_scores=True))
    for _ in range(2):
        batch = cluster.step()
        assert batch is not None
        assert [(piece.start, len(piece.ids)) for piece in batch.pieces] == [(0, 64)]
        names = cluster.pool.names(range(64), cluster.pool.scope_name("a", own=True))
        assert cluster.pool.find(names) == []
        cluster.batcher.park()
    assert cluster.take() == []


def test_sequence_whose_pages_arrive_is_passed_and_others_wait_for_the_same_pages() -> None:
    cluster = Cluster(TWO)
    finished(cluster, "a", TEXT)
    cluster.start(TWO)
    first, second, third = (cluster.ask(name, TEXT) for name in ("b", "c", "d"))
    other = cluster.ask("e", [50])
    cluster.step()
    assert first.arriving
    assert (second.slot, third.slot) == (-1, -1)
    assert other.answer_tokens == 1
    cluster.answer(cluster.orders[0])
    cluster.step()
    assert first.pages[:2] == second.pages[:2] == third.pages[:2] or third.slot < 0
    cluster.run()
    assert (first.cached, second.cached, third.cached) == (8, 8, 8)


def test_private_pages_that_arrive_after_a_cancel_are_found_by_no_request() -> None:
    cluster = Cluster(ONE)
    cluster.ask("a", TEXT, keep=False)
    cluster.step()
    cluster.halt()
    cluster.start(ONE)
    cluster.step()
    cluster.end(cluster.sequences["a"])
    cluster.answer(cluster.orders[0])
    assert cluster.pool.find(cluster.pool.names(TEXT, cluster.pool.scope_name("a", own=True))) == []


def test_cancelled_sequence_keeps_its_pages_until_they_have_arrived() -> None:
    cluster = Cluster(TWO)
    finished(cluster, "a", TEXT)
    cluster.start(TWO)
    one = cluster.ask("b", TEXT)
    cluster.step()
    cluster.end(one)
    assert cluster.pool.held == 2
    again = cluster.ask("c", TEXT)
    assert cluster.step() is None
    assert cluster.batcher.idle
    assert cluster.batcher.awaited
    cluster.answer(cluster.orders[0])
    assert cluster.pool.held == 0
    cluster.step()
    assert (again.cached, again.brought, cluster.orders) == (8, 0, [])


@pytest.mark.parametrize("split_shows", [False, True])
def test_next_epoch_continues_parked_sequences_amid_a_page(split_shows: bool) -> None:
    cluster = Cluster(replace(TWO, park=False), split_shows=split_shows)
    one, private = cluster.ask("a", TEXT, 6), cluster.ask("b", TEXT, 6, keep=False)
    cluster.add(GenerationRequest("c", (1, 2), 3, prompt_scores=True))
    cluster.step()
    cluster.step()
    names = cluster.halt()
    assert len({*names}) == len(names) == 7
    done = len(one.ids) - 1
    cluster.scatter(names)
    cluster.start(Plan(tuple(splits((2, 1, 0), HEADS)), keep=False, park=False))
    again = [cluster.sequences[name] for name in ("a", "b")]
    cluster.step()
    cluster.answer_all()
    assert [(each.done, each.brought, each.cached, each.private) for each in again] == [
        (done, done, 0, split_shows),
        (done, done, 0, True),
    ]
    cluster.run()
    assert again[0].ids == cluster.engine.answer(one)
    assert private.prompt_tokens == 10


def test_halt_that_is_resumed_goes_on_with_the_pages_in_memory() -> None:
    cluster = Cluster(TWO)
    one = cluster.ask("a", TEXT, 6)
    cluster.step()
    cluster.halt()
    cluster.step()
    assert cluster.orders[-1].order.kind == "bring", "the partial page"
    cluster.answer_all()
    cluster.run()
    assert one.ids == cluster.engine.answer(one)
    names = cluster.pool.names(one.ids[:12], cluster.pool.scope_name(KEPT_SCOPE))
    assert len(cluster.pool.find(names)) == 3, "a page that was brought in part is published once it is full"


def test_page_that_is_being_left_is_not_brought() -> None:
    cluster = Cluster(NEITHER)
    one = cluster.ask("a", TEXT, 6)
    cluster.step()
    cluster.batcher.park()
    orders = cluster.take()
    for order in orders:
        cluster.obey(order, 0)
    cluster.step()
    assert cluster.orders == orders
    assert one.done == 11, "the partial page is computed"


def test_leaving_in_advance_holds_at_most_half_of_all_pages() -> None:
    pool = PagePool(10, 1, KEYS)
    paging = Paging(pool, Disk(lambda _: False, keep=False, park=True))
    ids = [*range(8)]
    one = RunningSequence(GenerationRequest("r", tuple(ids), 1), ids, 10**6, done=len(ids))
    one.pages = [pool.allocate() for _ in ids]
    paging.publish(one)
    pool.give_back(one.pages)
    [order] = paging.take()
    assert (len(order.pages), pool.available) == (5, 5)
    assert paging.take() == ()
    paging.answered(order.number, 0, 0.0)
    paging.halting = True
    assert paging.take() == ()
    paging.halting = False
    [following] = paging.take()
    assert {*following.pages} == {*one.pages} - {*order.pages}, (
        "pages that could not be left are not tried again"
    )


def test_nothing_is_left_in_advance_while_an_order_is_late() -> None:
    pool = PagePool(10, 1, KEYS)
    paging = Paging(pool, Disk(lambda _: False, keep=False, park=True))
    ids = [*range(4)]
    one = RunningSequence(GenerationRequest("r", tuple(ids), 1), ids, 10**6, done=2)
    one.pages = [pool.allocate() for _ in ids]
    paging.publish(one)
    [late] = paging.take()
    paging.give_up(paging.under_way(late.number))
    one.done = len(ids)
    paging.publish(one)
    assert paging.take() == (), "it would hold more pages while the disk hangs"
    paging.answered(late.number, 2, 1.0)
    [order] = paging.take()
    assert [*order.pages] == one.pages[2:]


def test_disk_is_not_used_where_computing_is_faster_and_is_tried_again() -> None:
    cluster = Cluster(TWO)
    cluster.engine.batcher.cost = cost_of((1, 0.001), (64, 0.01))
    finished(cluster, "a", TEXT)
    cost = cost_of((1, 0.001), (64, 0.01))
    cluster.start(NEITHER)
    cluster.batcher.cost = cost
    brought = []
    for number in range(40):
        cluster.ask(f"n{number}", TEXT, 1)
        cluster.step()
        brought.append(bool(cluster.orders))
        for order in list(cluster.orders):
            cluster.answer(order, 5.0)
        cluster.run()
        cluster.ask(f"evicts {number}", [number + 20] * 31, 1)
        cluster.run()
    assert brought == [number % 17 == 0 for number in range(40)]


def test_one_message_names_at_most_2000_pages_and_128_orders_are_outstanding() -> None:
    pool = PagePool(3000, 1, KEYS)
    paging = Paging(pool, Disk(lambda _: False, keep=False, park=False))
    ids = [*range(2990)]
    one = RunningSequence(GenerationRequest("r", tuple(ids), 1), ids, 10**6, private=True, done=len(ids))
    one.pages = [pool.allocate() for _ in ids]
    paging.publish(one)
    paging.park(one, None, halted=True)
    pool.give_back(one.pages)
    assert [len(paging.take()) for _ in range(3)] == [125, 3, 0]
    while numbers := paging.outstanding:
        for number in numbers:
            paging.answered(number, 0, 1.0)
        paging.take()
    assert pool.held == 0


class Away(RuleBasedStateMachine):
    """Arrivals, cancels, losses of files, failing and late disks, kills and changes of plan in any order."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.count = 0
        model = data.draw(st.sampled_from(MODELS), "model")
        self.short_tokens = data.draw(st.sampled_from([1000, 1000, 5, 11]), "short_tokens")
        cost = data.draw(st.sampled_from(COSTS), "cost")
        shows = data.draw(st.booleans(), "shows")
        self.cluster = Cluster(self.plan(data), split_shows=shows, model=model, cost=cost)

    def plan(self, data: st.DataObject) -> Plan:
        draw = data.draw
        machines = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), "machines")
        return Plan(
            tuple(splits(machines, HEADS)),
            pages=draw(st.integers(6, 12), "pages"),
            keep=draw(st.booleans(), "keep"),
            park=draw(st.sampled_from([True, True, False]), "park"),
            sequences=draw(st.integers(1, 4), "sequences"),
            speculate=draw(st.sampled_from([0, 0, 3]), "speculate"),
            grain=draw(st.sampled_from([0, 1, 3]), "grain"),
            short_tokens=self.short_tokens,
        )

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.count += 1
        text = data.draw(st.sampled_from([[1, 2, 3] * 4, [1, 2, 3] * 3 + [7, 7, 7], [4, 5, 6] * 4]), "text")
        text = text[: data.draw(st.integers(3, 12), "length")]
        request = GenerationRequest(
            f"r{self.count}",
            tuple(text),
            data.draw(st.integers(1, 24 - len(text)), "answer"),
            keep_prefix=data.draw(st.sampled_from([True, True, True, False]), "keep"),
            prompt_scores=data.draw(st.sampled_from([False] * 4 + [True]), "scores"),
            scope=(scope := data.draw(st.sampled_from([KEPT_SCOPE, KEPT_SCOPE, "other"]), "scope")),
            keep_context=scope == KEPT_SCOPE,
            preamble_tokens=min(len(text), data.draw(st.sampled_from([0, 2, 6, 9]), "preamble")),
        )
        self.cluster.add(request)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.cluster.step()

    @precondition(lambda self: self.cluster.orders)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.01, 100.0]))
    def answer(self, data: st.DataObject, seconds: float) -> None:
        self.cluster.answer(data.draw(st.sampled_from(self.cluster.orders), "order"), seconds)

    @precondition(lambda self: self.cluster.orders)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.cluster.orders), "order")
        self.cluster.obey(order, data.draw(st.integers(0, len(self.cluster.plan.ranks) - 1), "rank"))

    @precondition(lambda self: self.cluster.orders)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.cluster.orders), "order")
        self.cluster.batcher.waited(order.order.number, 2 * LATE_S)
        self.cluster.check()

    @precondition(lambda self: self.cluster.sequences)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        names = sorted(self.cluster.sequences)
        self.cluster.end(self.cluster.sequences[data.draw(st.sampled_from(names), "whom")])
        self.cluster.check()

    @rule(machine=st.integers(0, 3), data=st.data())
    def lose_files(self, machine: int, data: st.DataObject) -> None:
        files = self.cluster.machines[machine].files
        if files:
            for key in data.draw(st.lists(st.sampled_from(sorted(files)), max_size=6), "files"):
                files.pop(key, None)

    @rule(machine=st.integers(0, 3), count=st.integers(1, 4))
    def fail(self, machine: int, count: int) -> None:
        self.cluster.machines[machine].fails = count

    @rule(data=st.data(), parked_lost=st.booleans())
    def kill(self, data: st.DataObject, parked_lost: bool) -> None:
        self.cluster.start(self.plan(data), killed=parked_lost)

    @rule(data=st.data(), scattered=st.booleans())
    def change_plan(self, data: st.DataObject, scattered: bool) -> None:
        names = self.cluster.halt()
        if scattered:
            self.cluster.scatter(names)
        self.cluster.start(self.plan(data))

    @rule()
    def resume(self) -> None:
        self.cluster.halt()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.run()
            for one in self.cluster.ended.values():
                expected = self.cluster.engine.answer(one)
                assert one.ids == expected[: len(one.ids)]


TestAway = Away.TestCase
TestAway.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
