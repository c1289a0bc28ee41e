"""How long workers are left out, as stories of breaches and times."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.master.quarantine import (
    EXCLUDED_S,
    FIRST_S,
    FLAPS,
    FLOOD,
    FORGIVEN_S,
    LONGEST_EXCLUDED_S,
    LONGEST_REST_S,
    LONGEST_S,
    REST_S,
    SAME_S,
    WINDOW_S,
    Quarantine,
    Reputation,
    Traffic,
)
from tpiedge.master.retries import BACKOFF_S


def test_every_breach_costs_twice_as_much_up_to_a_limit() -> None:
    quarantine, now, lengths = Quarantine(), 5.0, []
    for _ in range(9):
        until = quarantine.penalise("w-1", now)
        lengths.append(until - now)
        now = until
    assert lengths[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert lengths[-1] == lengths[-2] == LONGEST_S


def test_breaches_while_it_is_out_are_one() -> None:
    quarantine = Quarantine()
    until = quarantine.penalise("w-1", 0.0)
    assert quarantine.penalise("w-1", FIRST_S / 2) == until


def test_no_worker_pays_for_another() -> None:
    quarantine = Quarantine()
    quarantine.penalise("w-1", 0.0)
    quarantine.penalise("w-1", FIRST_S)
    assert quarantine.penalise("w-2", FIRST_S) == 2 * FIRST_S


def test_a_long_time_of_good_conduct_and_a_revocation_wipe_the_slate_clean() -> None:
    quarantine = Quarantine()
    quarantine.penalise("w-1", 0.0)
    later = FIRST_S + FORGIVEN_S
    assert quarantine.penalise("w-1", later) == later + FIRST_S
    quarantine.forget("w-1")
    quarantine.forget("w-9")
    assert quarantine.penalise("w-1", later) == later + FIRST_S


def test_a_flood_is_found_once_between_two_heartbeats() -> None:
    traffic = Traffic()
    assert sum(traffic.floods("w-1") for _ in range(3 * FLOOD)) == 1
    assert not traffic.floods("w-2")
    traffic.tick()
    assert not any(traffic.floods("w-1") for _ in range(FLOOD - 1))
    assert traffic.floods("w-1")


def rests(reputation: Reputation, name: str = "w-1") -> float | None:
    """Until when it is flapping."""
    found = reputation.avoided().get(name)
    return found.until if found is not None else None


@pytest.mark.fault("P5", "three losses within ten minutes")
def test_three_losses_within_ten_minutes_make_a_worker_flapping() -> None:
    reputation = Reputation()
    for number in range(FLAPS):
        assert rests(reputation) is None
        reputation.lost("w-1", "cut off\x07", 10.0 * number)
    assert rests(reputation) == 20.0 + REST_S
    assert (
        reputation.avoided()["w-1"].cause == "it was lost 3 times within 10 min, the last time: cut off\\x07"
    )
    assert reputation.left_out == {}
    assert not reputation.readmit(20.0 + REST_S - 1.0)
    assert reputation.readmit(20.0 + REST_S)
    assert not reputation.readmit(20.0 + REST_S)
    assert rests(reputation) is None


def test_losses_that_are_far_apart_do_not_add_up() -> None:
    reputation = Reputation()
    for number in range(9):
        reputation.lost("w-1", "cut off", number * WINDOW_S / 2)
    assert rests(reputation) is None


def test_a_flapping_worker_that_is_lost_again_rests_for_twice_as_long_up_to_a_limit() -> None:
    reputation, now, lengths = Reputation(), 0.0, []
    for _ in range(FLAPS - 1):
        reputation.lost("w-1", "cut off", now)
        now += 10.0
    for _ in range(9):
        reputation.lost("w-1", "cut off", now)
        until = rests(reputation)
        assert until is not None
        lengths.append(until - now)
        now = until + 10.0
        reputation.readmit(now)
    assert lengths[:3] == [REST_S, 2 * REST_S, 4 * REST_S]
    assert lengths[-1] == LONGEST_REST_S
    now += WINDOW_S
    reputation.lost("w-1", "cut off", now)
    assert rests(reputation) is None, "it was there for long enough to start anew"


def test_a_node_and_its_machine_are_one_loss() -> None:
    reputation = Reputation()
    for number in range(FLAPS - 1):
        reputation.lost("w-1", "its node", 60.0 * number)
        reputation.lost("w-1", "its agent", 60.0 * number + SAME_S / 2)
    assert rests(reputation) is None
    reputation.lost("w-1", "its node", 300.0)
    assert rests(reputation) == 300.0 + REST_S


def test_nodes_that_die_soon_after_each_other_are_as_many_losses() -> None:
    reputation = Reputation()
    for number in range(FLAPS):
        assert rests(reputation) is None
        reputation.crashed("w-1", "killed", number * SAME_S / 2)
    assert rests(reputation) == (FLAPS - 1) * SAME_S / 2 + REST_S


def test_plans_that_need_a_worker_whose_node_dies_again_and_again_wait_ever_longer_once_it_is_flapping() -> (
    None
):
    """For as long as it does not prove itself. Others' losses, and those of its machine, make nobody wait."""
    reputation, waits, now = Reputation(), list[float](), 0.0
    for _ in range(len(BACKOFF_S) + 1):
        now += 20.0
        reputation.crashed("w-1", "killed", now)
        reputation.lost("w-2", "cut off", now)
        assert reputation.due("w-2") <= now
        waits.append(max(0.0, reputation.due("w-1") - now))
        assert [*reputation.waiting(now)] == ["w-1"] * (waits[-1] > 0.0)
    assert waits == [0.0, 0.0, *BACKOFF_S[2:], BACKOFF_S[-1]]
    reputation.proved(["w-2", "w-1"])
    assert reputation.due("w-1") <= now
    reputation.crashed("w-1", "killed", now)
    assert reputation.due("w-1") == now + BACKOFF_S[0]
    reputation.crashed("w-1", "killed", now)
    reputation.forget("w-1")
    assert reputation.due("w-1") <= now


def test_who_is_stopped_by_its_user_is_not_lost() -> None:
    reputation = Reputation()
    for number in range(9):
        reputation.lost("w-1", "its node ended", 20.0 * number)
        reputation.stopped("w-1", 20.0 * number + 0.1)
    reputation.stopped("w-2", 0.0)
    assert rests(reputation) is None
    reputation.lost("w-1", "cut off", 200.0)
    reputation.stopped("w-1", 220.0)
    reputation.lost("w-1", "cut off", 240.0)
    reputation.lost("w-1", "cut off", 260.0)
    assert rests(reputation) == 260.0 + REST_S, "what was lost long before its stop counts"


def test_who_could_not_do_its_part_is_avoided_for_a_while_even_where_it_serves() -> None:
    reputation = Reputation()
    reputation.unfit("w-1", "the disk is full", 0.0)
    assert reputation.last_unfit == ()
    reputation.unfit("w-2", "out of memory", 1.0)
    assert reputation.last_unfit == ("w-2",)
    reputation.unfit("w-1", "the disk is full", 2.0)
    assert reputation.last_unfit == ("w-1",)
    reputation.doubt("w-3", "it died", 2.0)
    assert set(reputation.avoided()) == {"w-1", "w-2", "w-3"}
    assert set(reputation.avoided(serving=("w-1", "w-3"))) == {"w-1", "w-2"}
    assert reputation.left_out == {}
    reputation.trust()
    assert reputation.readmit(1.0 + EXCLUDED_S)
    assert {name: one.until for name, one in reputation.avoided().items()} == {"w-1": 2.0 + EXCLUDED_S}
    reputation.forget("w-1")
    assert reputation.avoided() == {}


def test_who_fails_again_is_avoided_for_twice_as_long_up_to_a_limit() -> None:
    reputation, now, lengths = Reputation(), 0.0, []
    for _ in range(7):
        reputation.unfit("w-1", "the disk is full", now)
        lengths.append(reputation.avoided()["w-1"].until - now)
        now += lengths[-1]
        assert reputation.readmit(now)
    assert lengths[:3] == [EXCLUDED_S, 2 * EXCLUDED_S, 4 * EXCLUDED_S]
    assert lengths[-1] == lengths[-2] == LONGEST_EXCLUDED_S
    reputation.forget("w-1")
    reputation.unfit("w-1", "the disk is full", now)
    assert reputation.avoided()["w-1"].until == now + EXCLUDED_S


def test_who_is_out_stays_out_while_the_others_begin_without_it() -> None:
    reputation = Reputation()
    reputation.unfit("w-1", "the disk is full", 0.0)
    reputation.doubt("w-2", "it died", 0.0)
    reputation.doubt("w-3", "it died", 0.0)
    reputation.exclude("w-4", "its numbers break the planner", 0.0)
    assert reputation.readmit(EXCLUDED_S, [("w-2",), ("w-1", "w-2")])
    assert (set(reputation.avoided()), set(reputation.left_out)) == ({"w-1", "w-3"}, {"w-4"})
    assert not reputation.readmit(EXCLUDED_S, [("w-2",)])
    assert reputation.readmit(EXCLUDED_S)
    assert (reputation.avoided(), reputation.left_out) == ({}, {})


def test_who_serves_and_cannot_prepare_another_part_is_bound_to_its_own_ever_longer() -> None:
    reputation = Reputation()
    reputation.bind("w-1", "the disk is full", 0.0)
    assert reputation.avoided() == {}
    assert reputation.bound["w-1"].until == EXCLUDED_S
    assert reputation.readmit(EXCLUDED_S)
    assert reputation.bound == {}
    reputation.bind("w-1", "the disk is full", EXCLUDED_S)
    assert reputation.bound["w-1"].until == 3 * EXCLUDED_S
    reputation.unfit("w-1", "the disk is full", EXCLUDED_S + 1.0)
    assert (set(reputation.avoided()), reputation.bound) == ({"w-1"}, {}), "what serves is not to go on"
    reputation.bind("w-1", "the disk is full", EXCLUDED_S + 2.0)
    reputation.forget("w-1")
    assert reputation.bound == {}


def test_standing_ends_with_its_time_or_with_the_membership() -> None:
    reputation = Reputation()
    reputation.exclude("w-1", "the disk is full", 0.0)
    reputation.penalise("w-2", "it lied", 0.0)
    for number in range(FLAPS):
        reputation.lost("w-3", "cut off", 10.0 * number)
    assert {name: one.until for name, one in reputation.left_out.items()} == {
        "w-1": EXCLUDED_S,
        "w-2": FIRST_S,
    }
    for name in ("w-2", "w-3", "w-9"):
        reputation.forget(name)
    assert (set(reputation.left_out), set(reputation.avoided())) == ({"w-1"}, set())
    reputation.lost("w-3", "cut off", 30.0)
    assert rests(reputation, "w-3") is None
    assert reputation.readmit(EXCLUDED_S)
    assert reputation.left_out == {}


def test_a_second_cause_does_not_shorten_the_time_of_the_first() -> None:
    reputation = Reputation()
    reputation.penalise("w-1", "it lied", 0.0)
    reputation.exclude("w-1", "the disk is full", 1.0)
    assert (reputation.left_out["w-1"].until, reputation.left_out["w-1"].cause) == (FIRST_S, "it lied")
    reputation.exclude("w-1", "the disk is full", FIRST_S - 1.0)
    reputation.penalise("w-1", "it lied", FIRST_S - 0.5)
    assert reputation.left_out["w-1"].until == FIRST_S - 1.0 + EXCLUDED_S


def flapping(reputation: Reputation, now: float) -> None:
    for ago_s in reversed(range(0, 10 * FLAPS, 10)):
        reputation.lost("w-1", "silent", now - ago_s)


#: What leaves a worker out.
EXCLUDES: dict[str, Callable[[Reputation, float], object]] = {
    "breach": lambda reputation, now: reputation.penalise("w-1", "it lied", now),
    "breaks the planner": lambda reputation, now: reputation.exclude("w-1", "0 GB/s", now),
    "cannot do its part": lambda reputation, now: reputation.unfit("w-1", "the disk is full", now),
    "bound to its part": lambda reputation, now: reputation.bind("w-1", "the disk is full", now),
    "doubted": lambda reputation, now: reputation.doubt("w-1", "it died", now),
    "flapping": flapping,
}


@pytest.mark.parametrize("exclude", EXCLUDES.values(), ids=EXCLUDES)
def test_whoever_is_left_out_is_tried_again_when_an_administrator_wants_that(
    exclude: Callable[[Reputation, float], object],
) -> None:
    reputation = Reputation()
    assert not reputation.clear("w-1", 0.0)
    exclude(reputation, 100.0)
    reputation.penalise("w-2", "it lied", 100.0)
    assert reputation.clear("w-1", 101.0)
    beginning = [("w-2",)]
    assert not reputation.readmit(101.0, beginning), "others begin without it"
    assert reputation.readmit(101.0)
    assert "w-1" not in {**reputation.left_out, **reputation.avoided(), **reputation.bound}
    assert "w-2" in reputation.left_out
    assert not reputation.clear("w-1", 102.0)


def test_who_was_tried_again_early_and_fails_is_out_for_longer() -> None:
    reputation = Reputation()
    for longer in (1, 2, 4):
        reputation.penalise("w-1", "it lied", 100.0)
        assert reputation.left_out["w-1"].until == 100.0 + longer * FIRST_S
        reputation.clear("w-1", 100.0)
        reputation.readmit(100.0)


def waits(*lengths_s: float) -> st.SearchStrategy[float]:
    """In whole seconds, which add up exactly; those at which a law changes are frequent."""
    return st.sampled_from(lengths_s) | st.integers(0, 4000).map(float)


@given(st.lists(waits(0.0, 1.0, FIRST_S, LONGEST_S, FORGIVEN_S), max_size=30))
def test_whenever_breaches_come_the_laws_hold(between: list[float]) -> None:
    quarantine, now, until, length_s = Quarantine(), 0.0, 0.0, 0.0
    for wait_s in between:
        now += wait_s
        found = quarantine.penalise("w-1", now)
        if now >= until:
            forgiven = not length_s or now >= until + FORGIVEN_S
            length_s = FIRST_S if forgiven else min(2 * length_s, LONGEST_S)
            until = now + length_s
        assert found == until


LOSSES = st.lists(
    st.tuples(waits(0.0, 1.0, 3.0, REST_S, WINDOW_S, LONGEST_REST_S), st.booleans()), max_size=30
)


@given(LOSSES)
def test_whenever_a_worker_is_lost_the_laws_hold(losses: list[tuple[float, bool]]) -> None:
    """Each a while after the one before, of its node or of its machine."""
    reputation, now = Reputation(), 0.0
    counted: list[tuple[float, bool]] = []
    until, length_s = 0.0, 0.0
    for wait_s, node in losses:
        now += wait_s
        reputation.readmit(now)
        assert ("w-1" in reputation.avoided()) == (now < until)
        if node:
            reputation.crashed("w-1", "it died", now)
        else:
            reputation.lost("w-1", "cut off", now)
        counted = [one for one in counted if now - one[0] < WINDOW_S]
        if not counted or now - counted[-1][0] >= SAME_S or (node and counted[-1][1]):
            counted.append((now, node))
            remembered = length_s > 0 and now < until + WINDOW_S
            if now >= until and (len(counted) >= FLAPS or remembered):
                length_s = min(2 * length_s, LONGEST_REST_S) if remembered else REST_S
                until = now + length_s
        assert ("w-1" in reputation.avoided()) == (now < until)
        assert "w-1" not in reputation.avoided(serving=["w-1"]), "what serves goes on"
        if now < until:
            assert reputation.avoided()["w-1"].until == until
        assert "w-1" not in reputation.left_out, "it is better than none"
    reputation.forget("w-1")
    assert not reputation.avoided()
    assert not reputation.waiting(now)
