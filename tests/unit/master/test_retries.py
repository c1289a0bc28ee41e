"""When to try again."""

from tpiedge.master.retries import BACKOFF_S, FUTILE, HOPELESS, Retries


def test_each_failure_makes_the_next_attempt_wait_longer_up_to_a_limit() -> None:
    attempts, waits = Retries(), []
    for number in range(len(BACKOFF_S) + 2):
        assert attempts.hopeless == (number >= HOPELESS)
        attempts.failed(100.0)
        waits.append(attempts.due - 100.0)
    assert waits == [*BACKOFF_S, BACKOFF_S[-1], BACKOFF_S[-1]]


def test_a_machine_that_has_come_since_is_worth_an_attempt_at_once() -> None:
    attempts = Retries()
    assert attempts.may_try(0.0, newest=0.0)
    for now in (1.0, 2.0):
        attempts.failed(now)
    due = 2.0 + BACKOFF_S[1]
    assert not attempts.may_try(due - 0.1, newest=2.0)
    assert attempts.may_try(due - 0.1, newest=2.1)
    assert attempts.may_try(due, newest=0.0)


def test_an_attempt_that_is_put_off_is_no_failure_and_waits_for_nobody_who_has_come_since() -> None:
    attempts = Retries()
    attempts.put_off(1.0, until=6.0)
    assert (attempts.failures, attempts.false_starts) == (0, 0)
    assert not attempts.may_try(5.9, newest=1.0)
    assert attempts.may_try(5.9, newest=1.1)
    assert attempts.may_try(6.0, newest=0.0)


def test_an_attempt_is_made_at_once_when_a_user_wants_that_and_the_next_waits_as_ever() -> None:
    attempts = Retries()
    for _ in range(3):
        attempts.failed(100.0)
    attempts.hurry(100.5)
    assert attempts.may_try(100.5, newest=0.0)
    attempts.hurry(200.0)
    assert attempts.may_try(100.5, newest=0.0)
    attempts.failed(101.0)
    assert attempts.due == 101.0 + BACKOFF_S[3]


def test_a_start_is_no_success() -> None:
    attempts = Retries()
    attempts.failed(0.0)
    assert attempts.false_starts == 1
    attempts.started()
    assert (attempts.false_starts, attempts.failures) == (0, 1)


def test_a_success_wipes_the_slate_clean() -> None:
    attempts = Retries()
    for _ in range(HOPELESS):
        attempts.failed(0.0)
    attempts.succeeded()
    assert not attempts.hopeless
    attempts.failed(100.0)
    assert attempts.due == 100.0


def test_attempts_none_of_which_serves_are_hopeless_in_the_end() -> None:
    """Each attempt may have been given up because a worker arrived."""
    attempts = Retries()
    for _ in range(FUTILE):
        attempts.begun()
    attempts.started()
    assert not attempts.hopeless
    attempts.begun()
    assert attempts.hopeless
    attempts.served()
    assert not attempts.hopeless
