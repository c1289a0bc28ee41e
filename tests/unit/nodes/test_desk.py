"""The laws of the desk: every accepted request ends exactly once, in order, whoever calls when."""

import threading
from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.nodes.stories import request
from tpiedge.errors import Cancelled, InternalError, PeerLost, TpiedgeError, UserError
from tpiedge.nodes.desk import Answering, Desk, QueueFull
from tpiedge.nodes.master import NotServing
from tpiedge.nodes.status import Totals
from tpiedge.wire.control import Failed, Finished, PromptScores, Ready, Token

WAIT_S = 10.0


class Book:
    """A desk and what it called."""

    def __init__(self, limit: int = 3) -> None:
        self.cancelled: list[str] = []
        self.submitted = 0
        self.desk = Desk(limit, self.cancelled.append, self._submitted)

    def _submitted(self) -> None:
        self.submitted += 1

    def submit(self, name: str = "r-1") -> Answering:
        return self.desk.submit(request(name))

    def start(self) -> str | None:
        started = self.desk.next()
        return None if started is None else started.id


def token(name: str = "r-1", index: int = 0) -> Token:
    return Token(1, name, index, 5, ())


def finished(name: str = "r-1") -> Finished:
    return Finished(1, name, "stop", 3, 1, 0.1, 0.1)


def events(answering: Answering) -> list[object]:
    """What came, the error that ended it included."""
    found: list[object] = []
    try:
        found.extend(answering.events())
    except TpiedgeError as error:
        found.append(error)
    return found


def test_an_answer_comes_in_its_order_and_ends_with_finished() -> None:
    book = Book()
    answering = book.submit()
    assert book.submitted == 1
    assert book.start() == "r-1"
    said = [PromptScores(1, "r-1", 0, (0.5,)), token(index=0), token(index=1), finished()]
    for message in said:
        book.desk.tell(message)
    assert events(answering) == said
    assert book.desk.idle


def test_what_became_of_the_requests_is_counted() -> None:
    book = Book(limit=2)
    book.submit("r-1")
    book.start()
    for message in (PromptScores(1, "r-1", 0, (0.5,)), token(), token(index=1), finished(), token(index=2)):
        book.desk.tell(message)
    book.submit("r-2")
    book.start()
    book.desk.tell(Finished(1, "r-2", "cancel", 3, 0, 0.1, 0.1))
    book.submit("r-3").cancel()
    book.submit("r-4")
    book.start()
    book.desk.tell(Failed(1, 0, "r-4", "UserError", "too long"))
    book.submit("r-5")
    book.start()
    book.desk.fail_running(PeerLost(1, "the work", "silence"))
    book.desk.fail_running(PeerLost(1, "the work", "silence"))
    book.submit("r-6")
    book.submit("r-7")
    with pytest.raises(QueueFull):
        book.submit("r-8")
    book.desk.fail_all(InternalError("the end"))
    assert book.desk.totals == Totals(finished=1, failed=4, cancelled=2, refused=1, prompt_tokens=6, tokens=2)


def test_requests_start_one_at_a_time_in_their_order() -> None:
    book = Book()
    book.submit("r-1")
    book.submit("r-2")
    assert [book.start(), book.start()] == ["r-1", None]
    book.desk.tell(finished("r-1"))
    assert [book.start(), book.start()] == ["r-2", None]


def test_what_is_said_of_another_request_is_dropped() -> None:
    book = Book()
    answering = book.submit()
    waiting = book.submit("r-2")
    book.desk.tell(finished("r-1"))
    book.start()
    for message in (finished("r-2"), token("r-0"), Ready(1, 0, 1, 0.1)):
        book.desk.tell(message)
    assert book.desk.running
    assert book.desk.waiting == 1
    book.desk.tell(finished("r-1"))
    book.desk.tell(finished("r-1"))
    assert events(answering) == [finished()]
    waiting.cancel()
    assert len(events(waiting)) == 1


@pytest.mark.parametrize(
    ("kind", "error"), [("UserError", UserError), ("OutOfMemory", InternalError), ("?", InternalError)]
)
def test_rank_0s_failure_of_a_request_is_an_error_of_its_kind(kind: str, error: type) -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.desk.tell(Failed(1, 0, "r-1", kind, "in words"))
    (found,) = events(answering)
    assert type(found) is error
    assert str(found) == "in words"


def test_the_queue_has_a_limit_that_the_running_request_does_not_count_for() -> None:
    book = Book(limit=1)
    book.submit("r-1")
    with pytest.raises(QueueFull):
        book.submit("r-2")
    book.start()
    book.submit("r-2")


def test_a_waiting_request_ends_where_it_is_cancelled() -> None:
    book = Book()
    first, second = book.submit("r-1"), book.submit("r-2")
    first.cancel()
    first.cancel()
    (error,) = events(first)
    assert isinstance(error, Cancelled)
    assert book.cancelled == []
    assert book.start() == "r-2"
    second.cancel()
    second.cancel()
    assert book.cancelled == ["r-2", "r-2"], "rank 0 is asked, and answers"
    book.desk.tell(finished("r-2"))
    second.cancel()
    assert len(book.cancelled) == 2
    assert events(second) == [finished("r-2")]


def test_a_reader_that_stops_early_cancels() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.desk.tell(token())
    reader = answering.events()
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert book.cancelled == ["r-1"]


def test_a_loss_fails_the_running_request_alone() -> None:
    book = Book()
    running, waiting = book.submit("r-1"), book.submit("r-2")
    book.start()
    book.desk.fail_running(PeerLost(1, "the work", "gone"))
    book.desk.fail_running(PeerLost(1, "the work", "gone"))
    assert "gone" in str(events(running)[0])
    assert book.start() == "r-2"
    book.desk.fail_all(NotServing("nobody"))
    assert "nobody" in str(events(waiting)[0])
    assert book.desk.idle


def test_a_closed_desk_takes_nothing_and_serves_what_it_took() -> None:
    book = Book()
    answering = book.submit()
    book.desk.close(NotServing("closing"))
    refusals = []
    for _ in range(3):
        with pytest.raises(NotServing) as refusal:
            book.submit("r-2")
        refusals.append(len(refusal.traceback))
    assert len(set(refusals)) == 1, "a refusal does not carry those before it"
    assert book.desk.totals.refused == 3
    book.start()
    book.desk.tell(finished())
    assert events(answering) == [finished()]


class Desks(RuleBasedStateMachine):
    """Any order of calls: each accepted request ends once; order is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.count = 0
        self.accepted: dict[str, Answering] = {}
        self.waiting: deque[str] = deque()
        self.running: str | None = None
        self.ended: set[str] = set()
        self.closed = False

    @rule()
    def submit(self) -> None:
        self.count += 1
        name = f"r-{self.count}"
        try:
            self.accepted[name] = self.book.submit(name)
        except NotServing:
            refused = "closed" if self.closed else "?"
        except QueueFull:
            refused = "full" if len(self.waiting) == 3 else "?"
        else:
            refused = ""
            self.waiting.append(name)
        assert refused != "?"

    @rule()
    def next(self) -> None:
        started = self.book.start()
        if self.running is not None or not self.waiting:
            assert started is None
        else:
            assert started == self.waiting[0]
            self.running = self.waiting.popleft()

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), kind=st.sampled_from(["token", "finished", "failed"]))
    def tell(self, data: st.DataObject, kind: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        made = {
            "token": token(name),
            "finished": finished(name),
            "failed": Failed(1, 0, name, "UserError", "x"),
        }
        self.book.desk.tell(made[kind])
        if name == self.running and kind != "token":
            self._end(name)
            self.running = None

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        self.accepted[name].cancel()
        if name in self.waiting:
            self.waiting.remove(name)
            self._end(name)

    @rule()
    def fail_running(self) -> None:
        self.book.desk.fail_running(PeerLost(0, "x", "y"))
        if self.running is not None:
            self._end(self.running)
            self.running = None

    @rule()
    def fail_all(self) -> None:
        self.book.desk.fail_all(NotServing("x"))
        for name in [*([self.running] if self.running else []), *self.waiting]:
            self._end(name)
        self.running = None
        self.waiting.clear()

    @rule()
    def close(self) -> None:
        self.book.desk.close(NotServing("closed"))
        self.closed = True

    def _end(self, name: str) -> None:
        self.ended.add(name)
        answering = self.accepted[name]
        last = events(answering)[-1]
        assert isinstance(last, Finished | TpiedgeError)
        assert answering._events.empty(), "nothing comes after the end"

    @invariant()
    def laws(self) -> None:
        desk = self.book.desk
        assert desk.waiting == len(self.waiting)
        assert desk.running == (self.running is not None)
        assert desk.idle == (not self.waiting and self.running is None)
        for name in self.ended:
            assert self.accepted[name]._events.empty(), "it ended once"


TestDesks = Desks.TestCase


def test_threads_that_submit_cancel_and_fail_at_once_all_get_one_end() -> None:
    """Four askers, a master that serves and one that breaks: no request is left, none ends twice."""
    book = Book(limit=1000)
    answers: list[Answering] = []
    asking = threading.Event()

    def ask(worker: int) -> None:
        for number in range(100):
            answering = book.submit(f"{worker}-{number}")
            answers.append(answering)
            if number % 3 == 0:
                answering.cancel()

    def serve() -> None:
        while not asking.is_set() or not book.desk.idle:
            name = book.start()
            if name is not None:
                book.desk.tell(token(name))
                book.desk.tell(finished(name))

    def break_down() -> None:
        while not asking.is_set():
            book.desk.fail_running(PeerLost(0, "x", "y"))
            book.desk.fail_all(NotServing("x"))

    askers = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    others = [threading.Thread(target=serve), threading.Thread(target=break_down)]
    for thread in [*askers, *others]:
        thread.start()
    for thread in askers:
        thread.join(WAIT_S)
    asking.set()
    for thread in others:
        thread.join(WAIT_S)
    assert len(answers) == 400
    for answering in answers:
        found = events(answering)
        ends = [event for event in found if isinstance(event, Finished | TpiedgeError)]
        assert len(ends) == 1
        assert answering._events.empty()
