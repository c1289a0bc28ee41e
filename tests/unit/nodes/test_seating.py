"""From who is there to who does what; whatever a worker claims, the answer is a plan or a reason."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.nodes.players import offer
from tpiedge.nodes.probing import Link
from tpiedge.nodes.roster import Machine
from tpiedge.nodes.seating import OWN_NAME, Seating
from tpiedge.nodes.seats import Arrangement
from tpiedge.planner import prediction
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.partition import Shape, Weight, parse_shares
from tpiedge.planner.prediction import Demand
from tpiedge.units import GIB, MIB
from tpiedge.wire.epochs import Capacity

SHAPE = Shape(heads=8, kv_heads=4, ffn_tiles=16)
TILE = (MIB // 3, MIB // 3, MIB - 2 * (MIB // 3))
MODEL = ModelFacts(SHAPE, 4, (MIB // 2,) * 2, (MIB // 2,) * 2, TILE, TILE, 0, MIB, 1024)


def seating(
    memory_bytes: int = 4 * GIB,
    min_workers: int = 0,
    weights: tuple[Weight, ...] | None = None,
    model: ModelFacts = MODEL,
) -> Seating:
    own = prediction.Machine(OWN_NAME, 1e9, memory_bytes)
    return Seating(Demand(model, 64, min_workers), own, 2, weights)


def machine(
    name: str = "w-1",
    link: Link | None = None,
    threads: int = 3,
    speed: float = 1e9,
    panel_speed: float = 1e9,
) -> Machine:
    given_offer = replace(
        offer(name, threads=threads),
        capacity=Capacity(threads, speed, panel_speed, 1e10, 1e10),
        memory_bytes=4 * GIB,
        free_disk_bytes=64 * GIB,
    )
    return Machine(name, given_offer, 0.0, 0.0, link=link)


def arranged(found: Arrangement | str) -> Arrangement:
    assert isinstance(found, Arrangement), found
    return found


def test_the_master_alone_takes_everything() -> None:
    (seat,) = arranged(seating()((), ())).seats
    assert (seat.machine, seat.threads, seat.memory_bytes, seat.speed) == ("", 2, 4 * GIB, 1e9)
    assert (len(seat.share.attention), len(seat.share.ffn)) == (8, 16)


def test_shares_follow_speed_and_threads_are_each_machines_own() -> None:
    first, second = arranged(seating()((machine(),), ())).seats
    assert (second.machine, second.threads) == ("w-1", 3)
    assert len(first.share.ffn) == len(second.share.ffn) == 8
    assert second.why


@pytest.mark.parametrize(("quantised", "tiles", "speed"), [(False, [4, 12], 3e9), (True, [12, 4], 1e9 / 3)])
def test_the_speed_that_counts_is_that_with_the_model_s_weights(
    quantised: bool, tiles: list[int], speed: float
) -> None:
    """A processor may be fast with weights in bf16 and slow with panels."""
    seats = arranged(
        seating(model=replace(MODEL, quantised=quantised))((machine(speed=3e9, panel_speed=1e9 / 3),), ())
    ).seats
    assert [len(seat.share.ffn) for seat in seats] == tiles
    assert seats[1].speed == speed


def test_a_machine_on_a_slow_link_has_no_seat() -> None:
    found = arranged(seating()((machine(link=Link(1.0, 1e3)),), ()))
    assert len(found.seats) == 1
    assert "round trip" in found.spare["w-1"]


def test_a_plan_that_serves_is_kept_unless_another_is_clearly_faster() -> None:
    """A second worker that adds little is a spare; without the first one, it takes its place."""
    first, slow = machine("w-1", speed=4e9), machine("w-2", speed=1e8)
    alone = arranged(seating()((first, slow), ("w-1",)))
    assert [seat.machine for seat in alone.seats] == ["", "w-1"]
    assert alone.spare == {"w-2": "the plan is as fast without it"}
    fast = machine("w-2", speed=8e9)
    joined = arranged(seating()((first, fast), ("w-1",)))
    assert {seat.machine for seat in joined.seats} == {"", "w-1", "w-2"}
    replaced = arranged(seating()((fast,), ("w-1",)))
    assert [seat.machine for seat in replaced.seats] == ["", "w-2"]


def test_too_few_workers_is_a_sentence() -> None:
    assert seating(min_workers=2)((machine(),), ()) == "1 of 2 workers are here: waiting for 1 more"


def test_a_model_that_does_not_fit_is_a_sentence() -> None:
    found = seating(memory_bytes=0)((), ())
    assert isinstance(found, str)
    assert OWN_NAME in found


def test_given_shares_wait_for_as_many_workers_and_leave_more_spare() -> None:
    given_shares = seating(weights=parse_shares("1,1", 2))
    assert given_shares((), ()) == "0 of the 1 workers of --shares are here: waiting for the others"
    found = arranged(given_shares((machine("w-1"), machine("w-2")), ()))
    assert [seat.machine for seat in found.seats] == ["", "w-1"]
    assert found.spare == {"w-2": "beyond the machines of --shares"}


def test_why_is_no_part_of_a_plan() -> None:
    """The same shares for another reason are no cause to start a new epoch."""
    (seat,) = arranged(seating()((), ())).seats
    assert replace(seat, why="another") == seat


U64 = st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
RATE = st.one_of(st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1e18]), st.floats(0.0, 1e18))
LINKS = st.one_of(
    st.none(), st.builds(Link, st.floats(1e-6, 1e9), st.one_of(st.just(0.0), st.floats(1e-9, 1e13)))
)


@st.composite
def claimed(draw: st.DrawFn) -> tuple[Machine, ...]:
    """Up to four machines with any values that a message can carry."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        claim = replace(
            offer(f"w-{number}"),
            threads=draw(st.sampled_from([0, 1, 2**32 - 1])),
            memory_bytes=draw(U64),
            free_disk_bytes=draw(U64),
            capacity=Capacity(0, draw(RATE), draw(RATE), 0.0, 0.0),
        )
        found.append(Machine(f"w-{number}", claim, 0.0, 0.0, link=draw(LINKS)))
    return tuple(found)


@settings(max_examples=200)
@given(claimed(), st.integers(0, 3), st.sampled_from([0, 100 * MIB, GIB, 4 * GIB]), st.booleans())
def test_no_claim_of_a_worker_breaks_the_planner(
    machines: tuple[Machine, ...], min_workers: int, memory_bytes: int, quantised: bool
) -> None:
    """A worker that lies harms its own share at most: there are seats that cover everything once, or a reason."""
    answer = seating(memory_bytes, min_workers, model=replace(MODEL, quantised=quantised))(machines, ())
    if isinstance(answer, str):
        assert answer
        return
    found = answer.seats
    assert found[0].machine == ""
    assert len({seat.machine for seat in found}) == len(found)
    for units, total in (
        ([seat.share.attention for seat in found], SHAPE.heads),
        ([seat.share.ffn for seat in found], SHAPE.ffn_tiles),
    ):
        covered = [unit for share in units for unit in range(share.start, share.stop)]
        assert covered == list(range(total))
    assert all(1 <= seat.threads <= 1024 for seat in found)
