import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.master.workers import (
    FIRST_S,
    HALVED_S,
    LONGEST_DUE_S,
    LONGEST_S,
    TRANSITIONS,
    Fault,
    Standing,
    WorkerEvent,
    WorkerState,
    failed,
    step,
)

E, S = WorkerEvent, WorkerState
PRESENT = Standing(S.PRESENT)


def test_transition_table_covers_all_states_and_events() -> None:
    reached = {to for moves in TRANSITIONS.values() for to, _ in moves.values()}
    assert set(TRANSITIONS) == set(S) == reached
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(E)
    for state in set(S) - {S.AWAY}:
        assert {TRANSITIONS[state][event][0] for event in (E.LOST, E.STOPPED)} == {S.AWAY}


@pytest.mark.parametrize(("state", "event"), [*itertools.product(S, E)])
def test_each_transition_has_its_state_and_actions(state: WorkerState, event: WorkerEvent) -> None:
    before = Standing(state, drained=state is S.DRAINED)
    if state is S.WAITING:
        before = Standing(state, fault="died", failed=90.0, until=120.0, doublings=1)
    to, actions = TRANSITIONS[state].get(event, (state, ()))
    found, done = step(before, event, 120.0 if event is E.OVER else 100.0, "lost", "cut off")
    assert (found.state, done) == (to, actions)
    assert (found.failed == 100.0) == ("count" in actions)
    assert found.waits(100.0) == (found.until > 100.0)
    assert found.drained == (event is E.DRAINED or (state is S.DRAINED and event is not E.UNDRAINED))


#: What happens to a worker, in seconds since its first offer, and what it is then.
STORIES: dict[str, list[tuple[float, WorkerEvent, Fault, WorkerState]]] = {
    "it serves, its node dies, it waits, and is tried again": [
        (0.0, E.ENGAGED, "", S.ENGAGED),
        (5.0, E.FAILED, "died", S.WAITING),
        (5.1, E.RELEASED, "", S.WAITING),
        (35.0, E.OVER, "", S.PRESENT),
    ],
    "its machine went with its node, which counts once": [
        (0.0, E.ENGAGED, "", S.ENGAGED),
        (5.0, E.FAILED, "died", S.WAITING),
        (5.1, E.LOST, "lost", S.AWAY),
        (6.0, E.OFFERED, "", S.WAITING),
        (35.0, E.OVER, "", S.PRESENT),
    ],
    "nothing serves without it": [
        (1.0, E.LOST, "lost", S.AWAY),
        (2.0, E.OFFERED, "", S.WAITING),
        (2.0, E.ENGAGED, "", S.ENGAGED),
        (3.0, E.UNPREPARED, "unfit", S.ENGAGED),
        (3.0, E.RELEASED, "", S.WAITING),
        (50.0, E.OVER, "", S.WAITING),
        (63.0, E.OVER, "", S.PRESENT),
    ],
    "an administrator ends its wait; the next one is longer": [
        (0.0, E.BREACHED, "breach", S.WAITING),
        (1.0, E.CLEARED, "", S.PRESENT),
        (2.0, E.BREACHED, "breach", S.WAITING),
        (1801.0, E.OVER, "", S.WAITING),
        (1802.0, E.OVER, "", S.PRESENT),
    ],
    "its user stops it: what was seen of its end is no failure": [
        (0.0, E.ENGAGED, "", S.ENGAGED),
        (5.0, E.FAILED, "died", S.WAITING),
        (5.1, E.STOPPED, "", S.AWAY),
        (6.0, E.OFFERED, "", S.PRESENT),
    ],
    "a stop takes no breach back": [
        (1.0, E.BREACHED, "breach", S.WAITING),
        (1.1, E.STOPPED, "", S.AWAY),
        (2.0, E.OFFERED, "", S.WAITING),
    ],
    "it is drained in an answer, switched off, and taken back in": [
        (0.0, E.ENGAGED, "", S.ENGAGED),
        (1.0, E.DRAINED, "", S.ENGAGED),
        (2.0, E.RELEASED, "", S.DRAINED),
        (3.0, E.LOST, "lost", S.AWAY),
        (4.0, E.OFFERED, "", S.DRAINED),
        (5.0, E.UNDRAINED, "", S.PRESENT),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_event_sequences_reach_expected_states(
    story: list[tuple[float, WorkerEvent, Fault, WorkerState]],
) -> None:
    worker, _ = step(Standing(), E.OFFERED, 0.0, "", "")
    assert worker.state is S.PRESENT
    for now, event, fault, expected in story:
        worker, _ = step(worker, event, now, fault, "it failed")
        assert worker.state is expected, (now, event)


def waits_of(*faults: Fault, apart_s: float = 0.0) -> list[float]:
    one, now, found = PRESENT, 0.0, []
    for fault in faults:
        one = failed(one, now, fault, "it failed")
        found.append(one.until - now)
        now = one.until + apart_s
    return found


@pytest.mark.fault("P5", "each loss doubles its wait, from half a minute to half an hour")
def test_each_failure_doubles_the_wait() -> None:
    doubled = [FIRST_S * 2**times for times in range(6)]
    assert waits_of(*["lost"] * 8) == [*doubled, LONGEST_S, LONGEST_S]
    assert waits_of("lost", "died", "unfit") == doubled[:3]
    assert waits_of("breach", "lost") == [8 * FIRST_S, 16 * FIRST_S], "a breach counts four times"


def test_each_hour_without_a_failure_halves_the_next_wait() -> None:
    assert waits_of("lost", "lost", "lost", apart_s=HALVED_S) == [FIRST_S] * 3
    assert waits_of("lost", "lost", apart_s=HALVED_S - 1.0) == [FIRST_S, 2 * FIRST_S]
    one = failed(PRESENT, 0.0, "breach", "it lied")
    assert failed(one, one.until + 2 * HALVED_S, "lost", "").until - one.until - 2 * HALVED_S == 4 * FIRST_S


def test_needed_worker_is_reused_later_after_each_failure() -> None:
    one, found = PRESENT, []
    for number in range(6):
        one = failed(one, 100.0 * number, "died", "killed")
        found.append(one.due - 100.0 * number)
    assert found == [0.0, 2.0, 4.0, 8.0, LONGEST_DUE_S, LONGEST_DUE_S]
    assert step(one, E.CLEARED, 501.0)[0].due <= 501.0


@pytest.mark.parametrize(("fault", "barred"), [("breach", True), ("died", False)])
def test_protocol_breach_bars_worker_from_all_plans(fault: Fault, barred: bool) -> None:
    one = failed(PRESENT, 0.0, fault, "it failed\x07")
    assert one.barred(one.until - 1.0) == barred
    assert not one.barred(one.until)
    assert one.why(one.until - 9.5) == "it failed\\x07 (for another 10 s)"


EVENTS = st.lists(
    st.tuples(st.sampled_from(E), st.sampled_from([0.0, 1.0, 29.0, 30.0, 1800.0, 3600.0])), max_size=40
)


@given(EVENTS)
def test_random_events_keep_worker_invariants(events: list[tuple[WorkerEvent, float]]) -> None:
    one, now = Standing(), 0.0
    for event, wait_s in events:
        now += wait_s
        before, fault = one, "breach" if event is E.BREACHED else "died"
        one, actions = step(one, event, now, fault, "it failed")  # type: ignore[arg-type]
        assert one.drained or one.state is not S.DRAINED
        assert one.waits(now) or one.state is not S.WAITING
        assert one.until - now <= LONGEST_S
        assert one.due <= max(now + LONGEST_DUE_S, one.until)
        assert ("count" in actions) <= (one.until > now or (one.drained and event is E.LOST))
        if before.state in (S.WAITING, S.AWAY) and event is not E.BREACHED:
            assert one.doublings <= before.doublings, "what happens to it meanwhile counts no more"
