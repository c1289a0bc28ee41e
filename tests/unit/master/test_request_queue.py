"""The laws of the requests: every accepted request ends exactly once, in order, in every interleaving of calls."""

import threading
from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.master.stories import request
from tpiedge.errors import Cancelled, InternalError, PeerLost, ProtocolError, TpiedgeError, UserError
from tpiedge.master.journal import GUILTY, MEAGRE, SUSPECT, Paused, Resumed, TakenUp
from tpiedge.master.master import NotServing
from tpiedge.master.pending_answer import PendingAnswer
from tpiedge.master.reading_progress import Reading
from tpiedge.master.request_queue import POSTPONED_LIMIT, Dismissed, QueueFull, RequestQueue
from tpiedge.master.status import Totals
from tpiedge.testing.clock import ManualClock
from tpiedge.wire.control import Failed, Finished, Heartbeat, PromptScores, Ready, Token
from tpiedge.wire.requests import GenerationRequest

WAIT_S = 10.0


class Book:
    """A queue and what it called."""

    def __init__(self, limit: int = 3, parallel: int = 1, compiles: int = 1) -> None:
        self.cancelled: list[str] = []
        self.submitted = 0
        self.clock = ManualClock()
        self.requests = RequestQueue(
            limit, parallel, self.cancelled.append, self._submitted, self.clock.now, compiles
        )

    def _submitted(self) -> None:
        self.submitted += 1

    def submit(self, name: str = "r-1", client: str = "", *, attended: bool = True) -> PendingAnswer:
        return self.requests.submit(request(name), client, attended=attended)

    def resume(self, name: str, tokens: int) -> PendingAnswer:
        """A request of an earlier master, which passed on so many tokens."""
        return self.requests.resume(request(name), [token(name, index) for index in range(tokens)], "again")

    def start(self) -> str | None:
        """The name of the request that starts."""
        started = self.order()
        return started.id if started is not None else None

    def order(self) -> GenerationRequest | None:
        """The request that starts, as rank 0 gets it."""
        asked: list[GenerationRequest] = []
        started = self.requests.start(asked.append)
        assert started == bool(asked)
        return asked[0] if asked else None

    def lose(self, why: str = "gone") -> None:
        """The epoch ends, because a node died."""
        error = PeerLost(1, "the work", why)
        self.requests.interrupt(str(error), error, died=True)


def token(name: str = "r-1", index: int = 0) -> Token:
    return Token(1, name, index, 5, ())


def finished(name: str = "r-1", tokens: int = 0) -> Finished:
    return Finished(1, name, "stop", 3, tokens, 0, tokens)


def events(answering: PendingAnswer) -> list[object]:
    """What came, the error that ended it included."""
    found: list[object] = []
    try:
        found.extend(answering.events())
    except TpiedgeError as error:
        found.append(error)
    return found


def test_what_is_postponed_waits_and_takes_no_place() -> None:
    book = Book(limit=2)
    book.requests.postpone(3, "")
    assert book.requests.waiting == 3
    book.submit("r-1")
    book.submit("r-2")
    book.requests.postpone(-1, "")
    assert book.requests.waiting == 4
    book.requests.postpone(-2, "")
    assert book.requests.waiting == 2


def test_only_so_many_of_a_client_are_postponed_and_others_have_room() -> None:
    book = Book()
    book.requests.postpone(POSTPONED_LIMIT, "flood")
    many = f"{POSTPONED_LIMIT} choices of requests are waiting already, {POSTPONED_LIMIT} of this client"
    with pytest.raises(QueueFull, match=many):
        book.requests.postpone(1, "flood")
    assert book.requests.totals.refused == 1
    book.requests.postpone(-1, "flood")
    book.requests.postpone(1, "flood")
    book.requests.postpone(100, "other")
    assert book.requests.waiting == POSTPONED_LIMIT + 100
    with pytest.raises(QueueFull, match="100 of this client"):
        book.requests.postpone(POSTPONED_LIMIT - 199, "other")
    book.requests.postpone(POSTPONED_LIMIT - 200, "other")
    with pytest.raises(QueueFull, match="0 of this client"):
        book.requests.postpone(101, "third")
    book.requests.postpone(100, "third")


def test_what_became_of_the_requests_is_counted() -> None:
    book = Book(limit=2)
    book.submit("r-1")
    book.start()
    for message in (
        PromptScores(1, "r-1", 1, (0.5,)),
        token(),
        token(index=1),
        finished(tokens=2),
        token(index=2),
    ):
        book.requests.tell(message)
    book.submit("r-2")
    book.start()
    book.requests.tell(Finished(1, "r-2", "cancel", 3, 0, 2, 0))
    book.submit("r-3").cancel()
    book.submit("r-4")
    book.start()
    book.requests.tell(Failed(1, 0, "r-4", "UserError", "too long"))
    book.submit("r-5")
    book.start()
    book.lose()
    assert book.start() == "r-5"
    book.clock.advance(2.5)
    book.requests.tell(token("r-5"))
    book.submit("r-6")
    book.submit("r-7")
    with pytest.raises(QueueFull):
        book.submit("r-8")
    book.requests.fail_all(InternalError("the end"))
    assert book.requests.totals == Totals(
        finished=1,
        failed=4,
        cancelled=2,
        refused=1,
        prompt_tokens=6,
        cached_tokens=2,
        tokens=3,
        resumed=1,
        paused_s=2.5,
    )


def test_requests_start_in_their_order_while_fewer_run_than_may() -> None:
    book = Book(limit=5, parallel=2)
    for number in range(1, 6):
        book.submit(f"r-{number}")
    assert [book.start(), book.start(), book.start()] == ["r-1", "r-2", None]
    assert (book.requests.running, book.requests.waiting) == (2, 3)
    book.requests.tell(finished("r-2"))
    assert [book.start(), book.start()] == ["r-3", None]
    book.requests.tell(finished("r-1"))
    book.requests.tell(finished("r-3"))
    assert [book.start(), book.start(), book.start()] == ["r-4", "r-5", None]


def test_a_request_that_cannot_be_sent_ends_alone() -> None:
    book = Book(parallel=2)
    bad, good = book.submit("r-1"), book.submit("r-2")

    def refuse(_request: GenerationRequest) -> None:
        raise ProtocolError("too large")

    assert book.requests.start(refuse), "there may be more to start"
    (error,) = events(bad)
    assert isinstance(error, UserError)
    assert str(error) == "the request cannot be served: too large"
    assert book.start() == "r-2"
    book.requests.tell(finished("r-2"))
    assert events(good) == [finished("r-2")]
    assert book.requests.totals == Totals(finished=1, failed=1, prompt_tokens=3)


def test_no_cancellation_overtakes_its_request() -> None:
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


def test_what_is_said_of_another_request_is_dropped() -> None:
    book = Book()
    answering = book.submit()
    waiting = book.submit("r-2")
    book.requests.tell(finished("r-1"))
    book.start()
    for message in (finished("r-2"), token("r-0"), Ready(1, 0, 1, 0.1)):
        book.requests.tell(message)
    assert (book.requests.running, book.requests.waiting) == (1, 1)
    book.requests.tell(finished("r-1"))
    book.requests.tell(finished("r-1"))
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
    book.requests.tell(Failed(1, 0, "r-1", kind, "in words"))
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


def test_a_reader_that_stops_early_cancels() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.requests.tell(token())
    reader = answering.events()
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert book.cancelled == ["r-1"]


def test_an_answer_that_a_stop_string_makes_whole_is_a_success() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    answering.complete()
    answering.cancel()  # as a client that leaves afterwards does
    assert book.cancelled == ["r-1", "r-1"], "rank 0 stops"
    book.requests.tell(Finished(1, "r-1", "cancel", 3, 1, 0, 1))
    assert book.requests.totals == Totals(finished=1, prompt_tokens=3)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_failure_after_the_whole_answer_is_none(all_of_them: bool) -> None:
    book = Book()
    answering = book.submit()
    book.start()
    answering.complete()
    if all_of_them:
        book.requests.fail_all(PeerLost(1, "the work", "gone"))
    else:
        book.lose()
    assert book.requests.totals == Totals(finished=1, prompt_tokens=0 if all_of_them else 3)
    assert book.requests.idle


# --- an epoch that ends


@pytest.mark.parametrize(
    ("tokens", "stop_ids", "reason"), [(4, (), "length"), (1, (5,), "stop")], ids=["length", "stop"]
)
def test_an_answer_that_lacks_only_the_last_word_of_a_lost_rank_0_is_whole(
    tokens: int, stop_ids: tuple[int, ...], reason: str
) -> None:
    book = Book()
    answering = book.requests.submit(replace(request("r-1"), stop_ids=stop_ids))
    book.start()
    for index in range(tokens):
        book.requests.tell(token(index=index))
    book.lose()
    assert events(answering)[-1] == Finished(0, "r-1", reason, 3, tokens, 0, 0)  # type: ignore[arg-type]
    assert book.requests.idle


def test_an_embedding_that_never_came_is_no_success() -> None:
    book = Book()
    answering = book.requests.submit(replace(request("r-1"), max_tokens=0, pooling="last"))
    book.start()
    book.requests.tell(Finished(1, "r-1", "stop", 3, 0, 0, 0))
    assert isinstance(events(answering)[-1], InternalError)


def test_an_answer_is_never_shorter_than_rank_0_says() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.requests.tell(token(index=0))
    book.requests.tell(token(index=2))
    book.requests.tell(finished(tokens=3))
    error = events(answering)[-1]
    assert isinstance(error, InternalError)
    assert "1 of the answer's 3 tokens came" in str(error)
    assert book.requests.totals == Totals(failed=1, tokens=1)


def test_scores_of_a_prompt_are_said_once() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.requests.tell(PromptScores(1, "r-1", 1, (0.1, 0.2)))
    book.requests.interrupt("a new plan begins")
    book.start()
    for message in (
        PromptScores(2, "r-1", 1, (0.1,)),
        PromptScores(2, "r-1", 2, (0.2, 0.3)),
        PromptScores(2, "r-1", 5, (0.9,)),
        finished(),
    ):
        book.requests.tell(message)
    assert [event for event in events(answering) if isinstance(event, PromptScores)] == [
        PromptScores(1, "r-1", 1, (0.1, 0.2)),
        PromptScores(2, "r-1", 3, (0.3,)),
    ]


def test_a_request_that_ends_every_epoch_is_found_beside_others_and_fails_alone() -> None:
    """The first of three; the others get on as soon as it is not beside them."""
    book = Book(limit=4, parallel=3)
    poison, *others = (book.submit(f"r-{number}") for number in range(3))
    losses = 0
    told = {f"r-{number}": 0 for number in range(3)}
    while book.requests.running or book.requests.waiting:
        started = []
        while (order := book.order()) is not None:
            started.append(order.id)
        if "r-0" in started:
            losses += 1
            book.lose()
            continue
        for name in started:
            book.requests.tell(token(name, told[name]))
            told[name] += 1
            book.requests.tell(finished(name, told[name]))
    assert losses == GUILTY
    error = events(poison)[-1]
    assert isinstance(error, PeerLost)
    for other in others:
        assert isinstance(events(other)[-1], Finished)
    assert book.requests.totals.failed == 1


def test_one_that_nobody_waits_for_and_that_ends_every_epoch_is_found_beside_one_that_always_runs() -> None:
    """The other gets on in each epoch."""
    book = Book(parallel=2)
    poison = book.resume("r-0", 1)
    other = book.requests.submit(replace(request("r-1"), max_tokens=1000))
    told = losses = 0
    for _ in range(50):
        started = []
        while (name := book.start()) is not None:
            started.append(name)
        if "r-1" in started:
            for _ in range(2):
                book.requests.tell(token("r-1", told))
                told += 1
        if "r-0" in started:
            book.lose()
            losses += 1
            assert book.requests.suspected == (SUSPECT <= losses < GUILTY)
    assert losses == GUILTY
    assert isinstance(events(poison)[-1], PeerLost)
    book.requests.tell(finished("r-1", told))
    assert isinstance(events(other)[-1], Finished)


def test_a_suspect_that_nobody_waits_for_keeps_its_place_until_it_gets_on() -> None:
    book = Book(parallel=1)
    book.resume("r-1", 1)
    for _ in range(SUSPECT):
        assert book.start() == "r-1"
        book.lose()
    book.submit("r-2")
    assert [book.start(), book.start()] == ["r-1", None]
    assert book.cancelled == []
    book.requests.tell(token(index=1))
    assert book.start() is None
    assert book.cancelled == ["r-1"]


def test_a_loss_beside_which_a_suspect_waited_is_not_its() -> None:
    book = Book(parallel=2)
    for name in ("r-1", "r-2"):
        book.resume(name, 0)
    for _ in range(SUSPECT):
        assert [book.start(), book.start()].count(None) == 0
        book.lose()
    assert book.start() == "r-1"
    for index in range(2):
        book.requests.tell(token(index=index))
    book.submit("r-3")
    assert [book.start(), book.start()] == ["r-3", None]
    book.lose()
    assert not book.requests.suspected
    assert book.start() == "r-2"


def test_a_suspect_that_somebody_waits_for_is_tried_alone_once_what_runs_has_ended() -> None:
    book = Book(parallel=2)
    for name in ("r-1", "r-2"):
        book.submit(name)
    for _ in range(SUSPECT):
        assert [book.start(), book.start()].count(None) == 0
        book.lose()
    assert book.start() == "r-1"
    for index in range(2):
        book.requests.tell(token(index=index))
    book.submit("r-3")
    assert book.start() is None, "neither the suspect nor who came later"
    book.requests.tell(Finished(1, "r-1", "length", 1, 2, 0, 2))
    assert [book.start(), book.start()] == ["r-2", None]


def test_losses_for_which_a_request_is_not_to_blame_do_not_end_it() -> None:
    """It got on in between, or a plan ended the epoch."""
    book = Book()
    first = book.requests.submit(replace(request("r-1"), max_tokens=40))
    for number in range(2 * GUILTY):
        assert book.start() == "r-1"
        for index in (2 * number, 2 * number + 1):
            book.requests.tell(token(index=index))
        book.lose()
    for _ in range(2 * GUILTY):
        assert book.start() == "r-1"
        book.requests.interrupt("a new plan begins")
    book.start()
    book.requests.tell(finished(tokens=4 * GUILTY))
    assert isinstance(events(first)[-1], Finished)


def test_nothing_begins_beside_a_suspect_until_it_gets_on() -> None:
    book = Book(parallel=2)
    book.submit("r-1")
    for _ in range(SUSPECT):
        assert book.start() == "r-1"
        book.lose()
    book.submit("r-2")
    assert [book.start(), book.start()] == ["r-1", None]
    book.requests.tell(token())
    assert book.start() == "r-2"


def test_one_that_gains_a_token_before_each_death_is_found_later_and_fails_alone() -> None:
    """The other gets on whenever it is not beside it."""
    book = Book(parallel=2)
    poison = book.requests.submit(replace(request("r-1"), max_tokens=100))
    other = book.submit("r-2")
    deaths = alone = 0
    while book.requests.running or book.requests.waiting:
        started = []
        while (name := book.start()) is not None:
            started.append(name)
        if "r-1" in started:
            book.requests.tell(token("r-1", deaths))
            deaths += 1
            alone += started == ["r-1"]
            book.lose()
        else:
            book.requests.tell(token("r-2"))
            book.requests.tell(finished("r-2", 1))
    assert deaths == GUILTY * MEAGRE
    assert alone >= 1
    assert isinstance(events(poison)[-1], PeerLost)
    assert isinstance(events(other)[-1], Finished)


def test_losses_in_which_no_node_died_make_no_request_a_suspect() -> None:
    """As a link that breaks, or a lid that is closed."""
    book = Book()
    answering = book.submit()
    error = PeerLost(1, "the work", "silent")
    for _ in range(3 * GUILTY):
        assert book.start() == "r-1"
        assert not book.requests.interrupt(str(error), error)
        assert not book.requests.suspected
    assert book.start() == "r-1"
    book.requests.tell(finished())
    assert isinstance(events(answering)[-1], Finished)


def test_a_loss_fails_no_request_and_the_end_of_patience_all() -> None:
    book = Book(parallel=2)
    answers = [book.submit(f"r-{number}") for number in (1, 2, 3)]
    book.start()
    book.start()
    book.lose()
    book.lose()
    book.requests.fail_all(NotServing("nobody"))
    for answering in answers:
        assert "nobody" in str(events(answering)[-1])
    assert book.requests.idle


def test_a_closed_desk_takes_nothing_and_serves_what_it_took() -> None:
    book = Book()
    answering = book.submit()
    book.requests.close(NotServing("closing"))
    refusals = []
    for _ in range(3):
        with pytest.raises(NotServing) as refusal:
            book.submit("r-2")
        refusals.append(len(refusal.traceback))
    assert len(set(refusals)) == 1, "a refusal does not carry those before it"
    assert book.requests.totals.refused == 3
    book.start()
    book.requests.tell(finished())
    assert events(answering) == [finished()]


def test_those_that_nobody_waits_for_run_behind_the_others() -> None:
    book = Book(limit=4, parallel=1)
    left, come_back = book.resume("r-1", 1), book.resume("r-2", 1)
    book.submit("r-3")
    book.submit("r-4").attend(False)
    book.submit("r-5")
    come_back.attend(True)
    order = []
    while (name := book.start()) is not None:
        order.append(name)
        book.requests.tell(finished(name, name in ("r-1", "r-2")))
    assert order == ["r-2", "r-3", "r-5", "r-1", "r-4"]
    assert isinstance(events(left)[-1], Finished)


def test_one_that_gives_way_may_be_whole_be_cancelled_or_lose_its_epoch() -> None:
    for fate, last in (("whole", Finished), ("cancelled", Finished), ("lost", Cancelled)):
        book = Book(parallel=1)
        absent = book.resume("r-1", 3)
        book.start()
        book.submit("r-2")
        book.start()
        if fate == "whole":
            book.requests.tell(token("r-1", 3))
        elif fate == "cancelled":
            absent.cancel()
        if fate == "lost":
            book.lose()
            assert book.start() == "r-2"
            absent.cancel()
        else:
            book.requests.tell(Finished(1, "r-1", "cancel", 3, 4, 0, 4))
            assert book.start() == "r-2"
        found = events(absent)[-1]
        assert isinstance(found, last)
        assert getattr(found, "reason", "") == {"whole": "length", "cancelled": "cancel"}.get(fate, "")


def test_in_a_full_queue_one_that_nobody_waits_for_makes_room_for_a_new_one() -> None:
    book = Book(limit=2, parallel=1)
    book.submit("r-1")
    book.start()
    left = book.submit("r-2")
    book.submit("r-3")
    left.attend(False)
    book.submit("r-4")
    (error,) = events(left)
    assert isinstance(error, Cancelled)
    assert str(error) == "request r-2 was cancelled: nobody waited for it, and others do"
    with pytest.raises(QueueFull):
        book.submit("r-5")


def test_in_a_full_queue_one_that_nobody_waits_for_takes_nobodys_place() -> None:
    book = Book(limit=2, parallel=1)
    book.submit("r-1")
    book.start()
    left = book.submit("r-2")
    left.attend(False)
    book.submit("r-3")
    with pytest.raises(QueueFull):
        book.submit("r-4", attended=False)
    assert [line.id for line in book.requests.lines] == ["r-1", "r-2", "r-3"]


def test_those_that_gave_way_count_for_the_limit() -> None:
    """Who asks, leaves, asks for something else, and comes again for all of it."""
    book = Book(limit=2, parallel=1)
    answers: list[PendingAnswer] = []
    for number in range(6):
        answers.append(book.submit(f"r-{number}"))
        if number:
            assert book.start() is None
            book.requests.tell(Finished(1, f"r-{number - 1}", "cancel", 3, 0, 0, 0))
        assert book.start() == f"r-{number}"
        answers[-1].attend(False)
    assert book.requests.waiting == 2
    for gone in answers[:3]:
        assert isinstance(events(gone)[-1], Cancelled)
    for one in answers:
        one.attend(True)
    with pytest.raises(QueueFull):
        book.submit("r-6")


def test_a_resumed_request_of_which_nothing_is_missing_ends_at_once() -> None:
    book = Book()
    answering = book.resume("r-1", 4)
    assert book.requests.idle
    assert events(answering) == [Paused("again"), Finished(0, "r-1", "length", 3, 4, 0, 0)]


def test_that_a_request_is_taken_up_is_said_once_and_not_before_it_is_asked_for() -> None:
    book = Book()
    asked, waiting = book.resume("r-1", 1), book.resume("r-2", 1)
    for _ in range(2):
        book.start()
        book.requests.interrupt("again")
    book.requests.fail_all(NotServing("nobody"))
    assert events(asked)[:-1] == [Paused("again"), TakenUp()]
    assert events(waiting)[:-1] == [Paused("again")]


def test_a_closed_queue_resumes_nothing() -> None:
    book = Book()
    book.requests.close(NotServing("closing"))
    with pytest.raises(NotServing):
        book.resume("r-1", 1)


class Queues(RuleBasedStateMachine):
    """Any order of calls: each accepted request ends once; a client's order is kept, and so is the number of those that
    run."""

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
        #: Of each, whether it ran alone, for each death in a row without any of its tokens, and with one at most.
        self.barren: dict[str, list[bool]] = {}
        self.meagre: dict[str, list[bool]] = {}
        self.passed: dict[str, int] = {}
        self.unwanted: set[str] = set()
        self.ended: set[str] = set()
        self.absent: set[str] = set()
        self.giving_way: set[str] = set()
        self.gave_way: set[str] = set()
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

    @rule(client=st.sampled_from(["", "", "a", "b"]), attended=st.booleans())
    def submit(self, client: str, attended: bool) -> None:
        self.count += 1
        name = f"r-{self.count}"
        self.clients[name] = client
        new = [one for one in self.waiting if one not in self.told]
        others = [one for one in reversed(self.waiting) if one in self.gave_way]
        own, own_others = ([one for one in some if self.clients[one] == client] for some in (new, others))
        own_places, places = self._places(own, own_others), self._places(new, others)
        full = own_places >= 3 or own_places >= 6 - places
        if places < 6:
            new, others = own, own_others
        able = [*new, *others] if len(others) > self.parallel else new
        displaced = [one for one in able if one in self.absent][:1] if full and attended else []
        try:
            self.accepted[name] = self.book.submit(name, client, attended=attended)
        except NotServing:
            refused = "closed" if self.closed else "?"
        except QueueFull:
            refused = "full" if full and not displaced else "?"
        else:
            refused = ""
            for one in displaced:
                self.waiting.remove(one)
                self._end(one)
            self.waiting.append(name)
            if not attended:
                self.absent.add(name)
        assert refused != "?"

    @rule()
    def next(self) -> None:
        asked = len(self.book.cancelled)
        order = self.book.order()
        started = order.id if order is not None else None
        suspects = {name for name in self.told if self._losses(name) >= SUSPECT}
        awaited = [name for name in self.waiting if name not in self.absent]
        if len(self.running) == self.parallel or not self.waiting or suspects & {*self.running}:
            assert started is None
            ending = self.giving_way | self.unwanted
            missing = max(0, len(awaited) - len(ending & {*self.running}))
            staying = ending | suspects
            able = [one for one in reversed(self.running) if one in self.absent and one not in staying]
            assert self.book.cancelled[asked:] == able[:missing]
            self.giving_way |= {*able[:missing]}
        else:
            able = [name for name in self.waiting if (name in suspects) != bool(self.running)]
            able = able or [*self.waiting] if not self.running else able
            if self.running and any(name in suspects for name in awaited):
                able = [name for name in able if name in self.told]
            if self.running or not suspects & {*self.waiting}:
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
            self.gave_way.discard(order.id)
            self.waiting.remove(order.id)
            self.running.append(order.id)
            assert len(order.answer_ids) == self.told.setdefault(order.id, 0)

    def _places(self, new: list[str], others: list[str]) -> int:
        return len(new) + max(0, len(others) - self.parallel)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), kind=st.sampled_from(["token", "old token", "finished", "cancelled", "failed"]))
    def tell(self, data: st.DataObject, kind: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        told = self.told.get(name, 0)
        made = {
            "token": token(name, told),
            "old token": token(name, max(0, told - 1)),
            "finished": finished(name, told),
            "cancelled": replace(finished(name, told), reason="cancel"),
            "failed": Failed(1, 0, name, "UserError", "x"),
        }
        self.book.requests.tell(made[kind])
        if name in self.running and (kind == "token" or (kind == "old token" and not told)):
            self.told[name] = told + 1
            self.passed[name] = self.passed.get(name, 0) + 1
            self.barren[name] = []
            if self.passed[name] > 1:
                self.meagre[name] = []
        if name not in self.running or kind in ("token", "old token"):
            return
        self.running.remove(name)
        gave_way = name in self.giving_way - self.unwanted and kind == "cancelled"
        if gave_way and told < self.accepted[name].request.max_tokens:
            self.waiting.appendleft(name)
            self.passed[name] = 0
            self.giving_way.remove(name)
            self.gave_way.add(name)
        else:
            self._end(name)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), attended=st.booleans())
    def attend(self, data: st.DataObject, attended: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.accepted)))
        self.accepted[name].attend(attended)
        self.absent = self.absent - {name} if attended else self.absent | {name}

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
        self.giving_way.clear()
        again = []
        for name in running:
            barren, meagre = (some.setdefault(name, []) for some in (self.barren, self.meagre))
            if died and passed.get(name, 0) == 0:
                barren.append(len(running) == 1)
            if died and passed.get(name, 0) <= 1:
                meagre.append(len(running) == 1)
            limits = ((barren, GUILTY), (meagre, MEAGRE * GUILTY))
            guilty = died and any(len(deaths) >= limit and any(deaths) for deaths, limit in limits)
            if name in self.unwanted or self.told[name] >= self.accepted[name].request.max_tokens or guilty:
                self._end(name)
            else:
                again.append(name)
        self.waiting = deque(sorted([*again, *self.waiting], key=lambda name: -self._losses(name)))
        assert self.book.requests.suspected == any(self._losses(name) >= SUSPECT for name in again)

    def _losses(self, name: str) -> int:
        return max(len(self.barren.get(name, [])), len(self.meagre.get(name, [])) // MEAGRE)

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


def test_threads_that_submit_cancel_and_fail_at_once_all_get_one_end() -> None:
    """Four askers, a master that serves and one that breaks: no request is left, none ends twice."""
    book = Book(limit=1000, parallel=4)
    answers: list[PendingAnswer] = []
    asking = threading.Event()

    def ask(worker: int) -> None:
        for number in range(100):
            answering = book.submit(f"{worker}-{number}")
            answers.append(answering)
            if number % 3 == 0:
                answering.cancel()

    def serve() -> None:
        while not asking.is_set() or not book.requests.idle:
            for name in filter(None, [book.start(), book.start()]):
                book.requests.tell(token(name))
                book.requests.tell(finished(name, 1))

    def break_down() -> None:
        while not asking.is_set():
            book.lose()
            book.requests.fail_all(NotServing("x"))

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


def test_what_reading_all_that_runs_anew_takes_is_known_from_what_was_read() -> None:
    """A short prompt that waits behind a long one does not count as slow."""
    clock = ManualClock()
    requests = RequestQueue(4, 2, lambda _name: None, lambda: None, clock.now)
    for name, length in (("r-1", 4000), ("r-2", 10)):
        requests.submit(GenerationRequest(name, tuple(range(length)), 8))
        assert requests.start(lambda _request: None)
    assert requests.reread_s == 0.0
    clock.advance(40.0)
    for name in ("r-1", "r-2"):
        requests.tell(Token(1, name, 0, 7, ()))
    assert requests.reread_s == pytest.approx(40.0, rel=0.01)
    requests.tell(Finished(1, "r-1", "length", 4000, 1, 0, 1))
    assert requests.reread_s == pytest.approx(0.1, rel=0.2)


def test_how_long_requests_take_and_pause_is_measured_by_cause() -> None:
    book = Book(limit=9, parallel=2)
    book.submit("r-1")
    book.resume("r-2", 1)
    book.clock.advance(1.0)
    assert [book.start(), book.start()] == ["r-1", "r-2"]
    book.clock.advance(2.0)
    for name, index in (("r-1", 0), ("r-2", 1)):
        book.requests.tell(token(name, index))
    book.submit("r-3")
    assert book.start() is None
    book.requests.tell(Finished(1, "r-2", "cancel", 3, 2, 0, 2))
    book.lose()
    book.clock.advance(4.0)
    assert [book.start(), book.start()] == ["r-1", "r-3"]
    book.requests.tell(token("r-1", 1))
    book.requests.interrupt("a new plan")
    book.clock.advance(8.0)
    assert [book.start(), book.start()] == ["r-1", "r-3"]
    book.requests.tell(token("r-1", 2))
    book.requests.tell(finished("r-1", 3))
    book.requests.tell(finished("r-3"))
    assert book.start() == "r-2"
    book.requests.tell(token("r-2", 2))
    found = book.requests.histograms
    pauses = {cause: one.total for cause, one in found.pauses.items()}
    assert pauses == {"loss": 4.0, "plan": 8.0, "restart": 3.0, "priority": 12.0}
    assert (found.queue.total, found.first_token.total, found.latency.total) == (5.0, 3.0, 15.0 + 12.0)
    assert found.between_tokens.total == 12.0 + 12.0


def test_how_each_request_gets_on() -> None:
    book = Book(parallel=2)
    for number in (1, 2, 3):
        book.submit(f"r-{number}")
    book.start()
    book.start()
    book.clock.advance(1.0)
    for index in range(3):
        book.requests.tell(token(index=index))
        book.clock.advance(1.0)
    lines = {line.id: line for line in book.requests.lines}
    assert [line.state for line in lines.values()] == ["answering", "reading", "queued"]
    assert (lines["r-1"].tokens, lines["r-1"].age_s, lines["r-1"].tokens_per_s) == (3, 4.0, 2 / 3)
    assert (lines["r-3"].tokens, lines["r-3"].prompt_tokens, lines["r-3"].tokens_per_s) == (0, 3, 0.0)
    book.lose("w-1 is gone")
    book.clock.advance(2.0)
    assert [line.id for line in book.requests.lines] == ["r-2", "r-1", "r-3"], (
        "first the one that did not get on"
    )
    second = book.requests.lines[1]
    assert (second.state, second.paused_s, "w-1 is gone" in second.why) == ("paused", 2.0, True)


def test_one_of_an_earlier_master_has_no_age() -> None:
    book = Book()
    book.resume("r-1", 2)
    (line,) = book.requests.lines
    assert (line.state, line.age_s, line.tokens, line.why) == ("paused", None, 2, "again")
    assert not line.attended


def test_an_administrator_ends_requests_that_run_wait_or_pause() -> None:
    book = Book(limit=3)
    running, waiting, whole = book.submit("r-1"), book.submit("r-2"), book.submit("r-3")
    book.start()
    assert book.requests.dismiss("r-1")
    assert book.cancelled == ["r-1"]
    book.requests.tell(Finished(1, "r-1", "cancel", 3, 1, 0, 1))
    assert book.requests.dismiss("r-2")
    for answering in (running, waiting):
        (error,) = events(answering)
        assert isinstance(error, Dismissed)
    assert not book.requests.dismiss("r-1")
    assert book.start() == "r-3"
    book.requests.tell(token("r-3"))
    book.lose()
    assert book.requests.dismiss("r-3")
    assert isinstance(events(whole)[-1], Dismissed)
    assert book.requests.idle
    assert book.requests.totals.cancelled == 3


def test_one_whose_last_word_is_on_its_way_is_whole() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    assert book.requests.dismiss("r-1")
    book.requests.tell(finished())
    assert events(answering) == [finished()]


def reads(book: Book, **done: int) -> None:
    """Rank 0 says how far it has read the prompts."""
    book.requests.tell(
        Heartbeat(1, 0, 1, 0, 0, tuple((name.replace("_", "-"), count) for name, count in done.items()))
    )


def test_who_waits_for_a_long_prompt_hears_how_far_it_is_read() -> None:
    book = Book(parallel=2)
    first, second = book.submit("r-1"), book.submit("r-2")
    assert [book.start(), book.start()] == ["r-1", "r-2"]
    assert [line.reading for line in book.requests.lines] == [None, None]
    for done in (0, 1, 1, 2):
        book.clock.advance(1.0)
        reads(book, r_1=done, r_9=5)
    assert [line.reading for line in book.requests.lines] == [Reading(2, 3, 2 / 3, pytest.approx(1.5)), None]
    for name in ("r-1", "r-2"):
        book.requests.tell(token(name))
    reads(book, r_1=3)
    assert [line.reading for line in book.requests.lines] == [None, None]
    for name in ("r-1", "r-2"):
        book.requests.tell(finished(name, 1))
    assert events(first) == [
        Reading(1, 3, 1.0, 2.0),
        Reading(2, 3, 2 / 3, pytest.approx(1.5)),
        token("r-1"),
        finished("r-1", 1),
    ]
    assert events(second) == [token("r-2"), finished("r-2", 1)]


def test_what_is_read_again_after_a_loss_counts_anew_and_is_no_end_of_the_pause() -> None:
    book = Book()
    answering = book.submit()
    book.start()
    book.requests.tell(token())
    book.lose()
    book.start()
    for done in (1, 3):
        book.clock.advance(1.0)
        reads(book, r_1=done)
    (line,) = book.requests.lines
    assert (line.state, line.reading) == ("paused", Reading(3, 4, 2.0, 0.5))
    book.requests.tell(token(index=1))
    book.requests.tell(finished(tokens=2))
    assert [type(event) for event in events(answering)] == [Token, Paused, Resumed, Token, Finished]
