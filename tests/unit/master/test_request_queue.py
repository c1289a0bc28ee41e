import threading
from collections import Counter, deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from tests.fakes.clock import ManualClock
from tests.unit.master.stories import request
from tpiedge.errors import InternalError, PeerLost, TpiedgeError, UserError
from tpiedge.master.journal import POISON_AFTER, QUARANTINE_AFTER, Paused, PendingAnswer, Resubmitted
from tpiedge.master.reconciler import NotServing
from tpiedge.master.request_queue import POSTPONED_LIMIT, Dismissed, QueueFull, RequestQueue
from tpiedge.master.request_times import Reading, Totals
from tpiedge.wire.control import Failed, Finished, Heartbeat, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

WAIT_S = 10.0


class Book:
    def __init__(self, limit: int = 3, parallel: int = 1, compiles: int = 1) -> None:
        self.cancelled: list[str] = []
        self.submitted = 0
        self.clock = ManualClock()
        self.requests = RequestQueue(
            limit, parallel, self.cancelled.append, self._submitted, self.clock.now, compiles
        )

    def _submitted(self) -> None:
        self.submitted += 1

    def submit(self, name: str = "r-1", client: str = "", *, has_reader: bool = True) -> PendingAnswer:
        return self.requests.submit(request(name), client, has_reader=has_reader)

    def resume(self, name: str, tokens: int) -> PendingAnswer:
        return self.requests.resume(request(name), [token(name, index) for index in range(tokens)], "again")

    def start(self) -> str | None:
        started = self.order()
        return started.id if started is not None else None

    def order(self) -> GenerationRequest | None:
        asked: list[GenerationRequest] = []
        started = self.requests.start(asked.append)
        assert started == bool(asked)
        return asked[0] if asked else None

    def lose_node(self, why: str = "gone") -> None:
        error = PeerLost(1, "the work", why)
        self.requests.interrupt(str(error), error, died=True)


def token(name: str = "r-1", index: int = 0, brought: int = 0) -> Token:
    return Token(1, name, index, 5, (), brought)


def finished(name: str = "r-1", tokens: int = 0) -> Finished:
    return Finished(1, name, "stop", 3, tokens, 0, tokens)


def events(answering: PendingAnswer) -> list[object]:
    found: list[object] = []
    try:
        found.extend(answering.events())
    except TpiedgeError as error:
        found.append(error)
    return found


def test_postponed_choices_are_limited_per_client() -> None:
    book = Book()
    book.requests.postpone(POSTPONED_LIMIT, "flood")
    many = f"{POSTPONED_LIMIT} choices of requests are waiting already, {POSTPONED_LIMIT} of this client"
    with pytest.raises(QueueFull, match=many):
        book.requests.postpone(1, "flood")
    book.requests.postpone(-1, "flood")
    book.requests.postpone(1, "flood")
    book.requests.postpone(100, "other")
    assert book.requests.waiting == POSTPONED_LIMIT + 100
    with pytest.raises(QueueFull, match="100 of this client"):
        book.requests.postpone(POSTPONED_LIMIT - 199, "other")


def test_request_totals_count_each_outcome() -> None:
    book = Book(limit=2)
    book.submit("r-1")
    book.start()
    said = token(), token(index=1), finished(tokens=2), token(index=2)
    for message in (PromptScores(1, "r-1", 1, (0.5,)), *said):
        book.requests.handle(message)
    book.submit("r-2")
    book.start()
    book.requests.handle(Finished(1, "r-2", "cancel", 3, 0, 2, 0))
    book.submit("r-3").cancel()
    book.submit("r-4")
    book.start()
    book.requests.handle(Failed(1, 0, "r-4", "UserError", "too long"))
    book.submit("r-5")
    book.start()
    book.lose_node()
    assert book.start() == "r-5"
    book.clock.advance(2.5)
    book.requests.handle(token("r-5"))
    book.submit("r-6")
    book.submit("r-7")
    with pytest.raises(QueueFull):
        book.submit("r-8")
    book.requests.fail_all(InternalError("the end"))
    ended = {"finished": 1, "failed": 4, "cancelled": 2, "refused": 1, "resumed": 1, "paused_s": 2.5}
    assert book.requests.totals == Totals(**ended, prompt_tokens=6, cached_tokens=2, tokens=3)


def test_cancel_is_never_sent_before_its_request() -> None:
    """The reader of an answer may leave at the moment at which the request starts."""
    book = Book()
    answering = book.submit()
    cancelling = threading.Thread(target=answering.cancel)

    def ask(_request: GenerationRequest) -> None:
        cancelling.start()
        cancelling.join(0.05)
        assert book.cancelled == []

    book.requests.start(ask)
    cancelling.join(WAIT_S)
    assert book.cancelled == ["r-1"]


@pytest.mark.parametrize(
    ("kind", "error"), [("UserError", UserError), ("OutOfMemory", InternalError), ("?", InternalError)]
)
def test_rank_0_failure_kind_maps_to_error_type(kind: str, error: type) -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.requests.handle(Failed(1, 0, "r-1", kind, "in words"))
    (found,) = events(answering)
    assert type(found) is error
    assert str(found) == "in words"


def test_answer_completed_by_stop_string_counts_as_finished() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    answering.complete()
    answering.cancel()  # as a client that leaves afterwards does
    assert book.cancelled == ["r-1", "r-1"], "rank 0 stops"
    book.requests.handle(Finished(1, "r-1", "cancel", 3, 1, 0, 1))
    assert book.requests.totals == Totals(finished=1, prompt_tokens=3)


def test_missing_answer_tokens_fail_the_request() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.requests.handle(token(index=0))
    book.requests.handle(token(index=2))
    book.requests.handle(finished(tokens=3))
    error = events(answering)[-1]
    assert isinstance(error, InternalError)
    assert "1 of the answer's 3 tokens came" in str(error)
    assert book.requests.totals == Totals(failed=1, tokens=1)


def test_resubmitted_event_is_sent_once_on_restart() -> None:
    book = Book()
    asked, waiting = book.resume("r-1", 1), book.resume("r-2", 1)
    for _ in range(2):
        book.start()
        book.requests.interrupt("again")
    book.requests.fail_all(NotServing("nobody"))
    assert events(asked)[:-1] == [Paused("again"), Resubmitted()]
    assert events(waiting)[:-1] == [Paused("again")]


class Queues(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.parallel = 2
        self.book = Book(parallel=self.parallel)
        self.count = 0
        self.accepted: dict[str, PendingAnswer] = {}
        self.clients: dict[str, str] = {}
        self.waiting: deque[str] = deque()
        self.running: list[str] = []
        self.told: dict[str, int] = {}
        #: Of each, thirds of deaths in a row: three without any of its tokens, one with one. Those that ran alone then.
        self.thirds: Counter[str] = Counter()
        self.alone: set[str] = set()
        self.passed: dict[str, int] = {}
        self.unwanted: set[str] = set()
        self.ended: set[str] = set()
        self.absent: set[str] = set()
        self.preempting: set[str] = set()
        self.preempted: set[str] = set()
        self.closed = False

    @initialize(said=st.lists(st.integers(0, 4), max_size=5))
    def resume(self, said: list[int]) -> None:
        for tokens in said:
            self.count += 1
            name = f"r-{self.count}"
            self.accepted[name] = self.book.resume(name, tokens)
            self.clients[name] = ""
            self.told[name] = tokens
            self.absent.add(name)
            if tokens == self.accepted[name].request.max_tokens:
                self._end(name)
            else:
                self.waiting.append(name)

    @rule(client=st.sampled_from(["", "", "a", "b"]), has_reader=st.booleans())
    def submit(self, client: str, has_reader: bool) -> None:
        self.count += 1
        name = f"r-{self.count}"
        self.clients[name] = client
        waiting = [one for one in self.waiting if one not in self.told or one in self.preempted]
        own = sum(self.clients[one] == client for one in waiting)
        full = own >= 3 or own >= 6 - len(waiting)
        try:
            self.accepted[name] = self.book.submit(name, client, has_reader=has_reader)
        except NotServing:
            assert self.closed
        except QueueFull:
            assert full
        else:
            assert not full
            self.waiting.append(name)
            if not has_reader:
                self.absent.add(name)

    @rule()
    def next(self) -> None:
        asked = len(self.book.cancelled)
        order = self.book.order()
        started = order.id if order is not None else None
        quarantined = {name for name in self.told if self._deaths(name) >= QUARANTINE_AFTER}
        awaited = [name for name in self.waiting if name not in self.absent]
        if len(self.running) == self.parallel or not self.waiting or quarantined & {*self.running}:
            assert started is None
            ending = self.preempting | self.unwanted
            missing = max(0, len(awaited) - len(ending & {*self.running}))
            staying = ending | quarantined
            able = [one for one in reversed(self.running) if one in self.absent and one not in staying]
            assert self.book.cancelled[asked:] == able[:missing]
            self.preempting |= {*able[:missing]}
        else:
            able = [name for name in self.waiting if (name in quarantined) != bool(self.running)]
            able = able or [*self.waiting] if not self.running else able
            if self.running and quarantined & {*self.waiting}:
                able = [name for name in able if name in self.told]
            if self.running or not quarantined & {*self.waiting}:
                able = [name for name in able if name not in self.absent] or able
            if not able:
                assert order is None
                return
            assert order is not None
            assert started is not None
            if able[0] in self.told:
                assert started == able[0]
            else:
                places = Counter(self.clients[name] for name in self.running)
                client = self.clients[started]
                assert places[client] == min(places[self.clients[name]] for name in able)
                assert started == next(name for name in able if self.clients[name] == client)
            self.preempted.discard(order.id)
            self.waiting.remove(order.id)
            self.running.append(order.id)
            assert len(order.answer_ids) == self.told.setdefault(order.id, 0)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), kind=st.sampled_from(["token", "old token", "finished", "cancelled", "failed"]))
    def tell(self, data: st.DataObject, kind: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        told = self.told.get(name, 0)
        made = {
            "token": token(name, told),
            "old token": token(name, max(0, told - 1)),
            "finished": finished(name, told),
            "cancelled": structs.replace(finished(name, told), reason="cancel"),
            "failed": Failed(1, 0, name, "UserError", "x"),
        }
        self.book.requests.handle(made[kind])
        if name in self.running and (kind == "token" or (kind == "old token" and not told)):
            self.told[name] = told + 1
            self.passed[name] = self.passed.get(name, 0) + 1
            if self.passed[name] > 1:
                self.thirds[name] = 0
                self.alone.discard(name)
        if name not in self.running or kind in ("token", "old token"):
            return
        self.running.remove(name)
        preempted = name in self.preempting - self.unwanted and kind == "cancelled"
        if preempted and told < self.accepted[name].request.max_tokens:
            self.waiting.appendleft(name)
            self.passed[name] = 0
            self.preempting.remove(name)
            self.preempted.add(name)
        else:
            self._end(name)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), has_reader=st.booleans())
    def set_has_reader(self, data: st.DataObject, has_reader: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        self.accepted[name].set_has_reader(has_reader)
        self.absent = self.absent - {name} if has_reader else self.absent | {name}

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        asked = len(self.book.cancelled)
        self.accepted[name].cancel()
        assert self.book.cancelled[asked:] == [name] * (name in self.running)
        if name in self.running:
            self.unwanted.add(name)
        if name in self.waiting:
            self.waiting.remove(name)
            self._end(name)

    @rule(cause=st.sampled_from(["plan", "loss", "death", "death", "death"]))
    def interrupt(self, cause: str) -> None:
        error, died = PeerLost(0, "x", "y"), cause == "death"
        self.book.requests.interrupt("x", None if cause == "plan" else error, died=died)
        running, self.running, passed, self.passed = self.running, [], self.passed, {}
        self.preempting.clear()
        again = []
        for name in running:
            if died and passed.get(name, 0) <= 1:
                self.thirds[name] += 1 if passed.get(name, 0) else 3
                if len(running) == 1:
                    self.alone.add(name)
            poison = died and name in self.alone and self._deaths(name) >= POISON_AFTER
            if name in self.unwanted or self.told[name] >= self.accepted[name].request.max_tokens or poison:
                self._end(name)
            else:
                again.append(name)
        self.waiting = deque(sorted([*again, *self.waiting], key=lambda name: -self._deaths(name)))

    def _deaths(self, name: str) -> int:
        return self.thirds[name] // 3

    @rule()
    def fail_all(self) -> None:
        self.book.requests.fail_all(NotServing("x"))
        for name in [*self.running, *self.waiting]:
            self._end(name)
        self.running.clear()
        self.waiting.clear()

    @rule()
    def close(self) -> None:
        self.book.requests.close(NotServing("closed"))
        self.closed = True

    def _end(self, name: str) -> None:
        self.ended.add(name)
        answering = self.accepted[name]
        last = events(answering)[-1]
        assert isinstance(last, Finished | TpiedgeError)
        assert answering._events.empty(), "nothing comes after the end"

    @invariant()
    def laws(self) -> None:
        requests = self.book.requests
        assert requests.waiting == len(self.waiting)
        assert requests.running == len(self.running)
        assert requests.idle == (not self.waiting and not self.running)
        for name in self.ended:
            assert self.accepted[name]._events.empty(), "it ended once"


@pytest.mark.fault("P21", "every accepted request ends exactly once")
class TestQueues(Queues.TestCase):
    """Random orders."""


def test_resumed_answers_are_counted_by_how_they_got_their_kv_cache() -> None:
    book = Book(limit=9, parallel=2)
    book.submit("r-1")
    book.start()
    book.requests.handle(token())
    counts = []
    for index, (travels, brought) in enumerate([(True, 9), (False, 9), (True, 0)], 1):
        book.requests.interrupt("a new plan", travels=travels)
        book.start()
        book.requests.handle(token(index=index, brought=brought))
        totals = book.requests.totals
        counts.append((totals.resumed, totals.travelled, totals.brought))
    assert counts == [(1, 1, 0), (2, 1, 1), (3, 1, 1)]


def test_histograms_measure_latency_and_pauses_by_cause() -> None:
    book = Book(limit=9, parallel=2)
    book.submit("r-1")
    book.resume("r-2", 1)
    book.clock.advance(1.0)
    assert [book.start(), book.start()] == ["r-1", "r-2"]
    book.clock.advance(2.0)
    for name, index in (("r-1", 0), ("r-2", 1)):
        book.requests.handle(token(name, index))
    book.submit("r-3")
    assert book.start() is None
    book.requests.handle(Finished(1, "r-2", "cancel", 3, 2, 0, 2))
    book.lose_node()
    book.clock.advance(4.0)
    assert [book.start(), book.start()] == ["r-1", "r-3"]
    book.requests.handle(token("r-1", 1))
    book.requests.interrupt("a new plan")
    book.clock.advance(8.0)
    assert [book.start(), book.start()] == ["r-1", "r-3"]
    book.requests.handle(token("r-1", 2))
    book.requests.handle(finished("r-1", 3))
    book.requests.handle(finished("r-3"))
    assert book.start() == "r-2"
    book.requests.handle(token("r-2", 2))
    found = book.requests.histograms
    pauses = {cause: one.total for cause, one in found.pauses.items()}
    assert pauses == {"loss": 4.0, "plan": 8.0, "restart": 3.0, "priority": 12.0}
    assert (found.queue.total, found.first_token.total, found.latency.total) == (5.0, 3.0, 15.0 + 12.0)
    assert found.between_tokens.total == 12.0 + 12.0


def test_request_lines_show_state_and_progress() -> None:
    book = Book(parallel=2)
    for number in (1, 2, 3):
        book.submit(f"r-{number}")
    book.start()
    book.start()
    book.clock.advance(1.0)
    for index in range(3):
        book.requests.handle(token(index=index))
        book.clock.advance(1.0)
    lines = {line.id: line for line in book.requests.lines}
    assert [line.state for line in lines.values()] == ["answering", "reading", "queued"]
    assert (lines["r-1"].tokens, lines["r-1"].age_s, lines["r-1"].tokens_per_s) == (3, 4.0, 2 / 3)
    assert (lines["r-3"].tokens, lines["r-3"].prompt_tokens, lines["r-3"].tokens_per_s) == (0, 3, 0.0)
    book.lose_node("w-1 is gone")
    book.clock.advance(2.0)
    in_order = [line.id for line in book.requests.lines]
    assert in_order == ["r-2", "r-1", "r-3"], "first the one that did not get on"
    second = book.requests.lines[1]
    assert (second.state, second.paused_s, "w-1 is gone" in second.why) == ("paused", 2.0, True)


def test_admin_ends_running_queued_and_paused_requests() -> None:
    book = Book(limit=3)
    running, waiting, whole = book.submit("r-1"), book.submit("r-2"), book.submit("r-3")
    book.start()
    assert book.requests.dismiss("r-1")
    assert book.cancelled == ["r-1"]
    book.requests.handle(Finished(1, "r-1", "cancel", 3, 1, 0, 1))
    assert book.requests.dismiss("r-2")
    for answering in (running, waiting):
        (error,) = events(answering)
        assert isinstance(error, Dismissed)
    assert not book.requests.dismiss("r-1")
    assert book.start() == "r-3"
    book.requests.handle(token("r-3"))
    book.lose_node()
    assert book.requests.dismiss("r-3")
    assert isinstance(events(whole)[-1], Dismissed)
    assert book.requests.idle
    assert book.requests.totals.cancelled == 3


def reads(book: Book, **done: int) -> None:
    book.requests.handle(
        Heartbeat(1, 0, 1, 0, 0, tuple((name.replace("_", "-"), count) for name, count in done.items()))
    )


def test_prefill_progress_is_sent_to_the_reader() -> None:
    book = Book(parallel=2)
    first, second = book.submit("r-1"), book.submit("r-2")
    assert [book.start(), book.start()] == ["r-1", "r-2"]
    assert [line.reading for line in book.requests.lines] == [None, None]
    for done in (0, 1, 1, 2):
        book.clock.advance(1.0)
        reads(book, r_1=done, r_9=5)
    assert [line.reading for line in book.requests.lines] == [Reading(2, 3, 2 / 3, pytest.approx(1.5)), None]
    for name in ("r-1", "r-2"):
        book.requests.handle(token(name))
    reads(book, r_1=3)
    assert [line.reading for line in book.requests.lines] == [None, None]
    for name in ("r-1", "r-2"):
        book.requests.handle(finished(name, 1))
    assert events(first) == [
        Reading(1, 3, 1.0, 2.0),
        Reading(2, 3, 2 / 3, pytest.approx(1.5)),
        token("r-1"),
        finished("r-1", 1),
    ]
    assert events(second) == [token("r-2"), finished("r-2", 1)]


def test_preempted_requests_count_for_the_limit() -> None:
    book = Book(limit=1)
    book.submit("r-1", has_reader=False)
    book.start()
    book.submit("r-2")
    assert book.start() is None
    book.requests.handle(structs.replace(finished(), reason="cancel"))
    assert book.start() == "r-2"
    with pytest.raises(QueueFull, match="1 requests are waiting already, 1 of this client"):
        book.submit("r-3")
