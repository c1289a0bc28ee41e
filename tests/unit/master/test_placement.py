"""From who is there to who does what; whatever a worker claims, the answer is a plan or a reason."""

from dataclasses import asdict, is_dataclass, replace
from math import inf
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.master.players import offer
from tpiedge.kernels.shared_library import NO_ISA
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.roster import Machine
from tpiedge.planner import prediction
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.partition import LayerShape, ShareWeight, parse_shares
from tpiedge.planner.prediction import Demand
from tpiedge.planner.reasons import slower
from tpiedge.units import GIB, MIB
from tpiedge.wire.codec import encode
from tpiedge.wire.epochs import Capacity, Offer
from tpiedge.wire.probing import LinkSpeed

SHAPE = LayerShape(heads=8, kv_heads=4, ffn_tiles=16)
TILE = (MIB // 3, MIB // 3, MIB - 2 * (MIB // 3))
MODEL = ModelFacts(SHAPE, 4, (MIB // 2,) * 2, (MIB // 2,) * 2, TILE, TILE, 0, MIB, 8192, 8)


def placement(
    memory_bytes: int = 4 * GIB,
    min_workers: int = 0,
    weights: tuple[ShareWeight, ...] | None = None,
    model: ModelFacts = MODEL,
) -> NodePlacement:
    own = prediction.MachineFacts(OWN_NAME, 1e9, memory_bytes)
    return NodePlacement(Demand(model, 64, min_workers), own, 2, weights)


def machine(
    name: str = "w-1",
    link: LinkSpeed | None = None,
    threads: int = 3,
    speed: float = 1e9,
    panel_speed: float = 1e9,
) -> Machine:
    given_offer = replace(
        offer(name, threads=threads),
        capacity=Capacity(threads, speed, panel_speed),
        memory_bytes=4 * GIB,
        free_disk_bytes=64 * GIB,
    )
    return Machine(name, given_offer, 0.0, 0.0, link=link)


def arranged(found: Assignments | NoPlan) -> Assignments:
    assert isinstance(found, Assignments), found
    return found


def refused(found: Assignments | NoPlan) -> str:
    assert isinstance(found, NoPlan), found
    return found.reason


def spare(found: Assignments | NoPlan) -> dict[str, tuple[str, str]]:
    """(kind, words) of each machine without a part."""
    return {name: (reason.kind, reason.why) for name, reason in found.spare.items()}


def test_the_master_alone_takes_everything() -> None:
    (assignment,) = arranged(placement()((), ())).assignments
    assert (assignment.machine, assignment.threads, assignment.memory_bytes, assignment.speed) == (
        "",
        2,
        4 * GIB,
        1e9,
    )
    assert (len(assignment.share.attention), len(assignment.share.ffn)) == (8, 16)


def test_shares_follow_speed_and_threads_are_each_machines_own() -> None:
    first, second = arranged(placement()((machine(),), ())).assignments
    assert (second.machine, second.threads) == ("w-1", 3)
    assert len(first.share.ffn) == len(second.share.ffn) == 8
    assert second.why


@pytest.mark.parametrize(("quantised", "tiles", "speed"), [(False, [4, 12], 3e9), (True, [12, 4], 1e9 / 3)])
def test_the_speed_that_counts_is_that_with_the_model_s_weights(
    quantised: bool, tiles: list[int], speed: float
) -> None:
    """A processor may be fast with weights in bf16 and slow with panels."""
    assignments = arranged(
        placement(model=replace(MODEL, quantised=quantised))((machine(speed=3e9, panel_speed=1e9 / 3),), ())
    ).assignments
    assert [len(assignment.share.ffn) for assignment in assignments] == tiles
    assert assignments[1].speed == speed


def test_a_machine_without_native_kernels_has_no_part_in_a_quantised_model() -> None:
    """Nor is it waited for in vain without a word; in another model it has one."""
    able, lacking = machine("w-1"), machine("w-2")
    lacking = replace(lacking, offer=replace(lacking.offer, isa=NO_ISA))
    found = arranged(placement(model=replace(MODEL, needs_native=True))((able, lacking), ()))
    assert [one.machine for one in found.assignments] == ["", "w-1"]
    kind, why = spare(found)["w-2"]
    assert kind == "no room"
    assert "has no native kernels" in why
    assert "make setup" in why
    none = placement(min_workers=1, model=replace(MODEL, needs_native=True))((lacking,), ())
    assert refused(none) == "0 of 1 worker here: waiting for 1 more"
    assert list(none.spare) == ["w-2"]
    assert len(arranged(placement()((able, lacking), ())).assignments) == 3


@pytest.mark.parametrize(("tile_bytes", "least", "most"), [(1000, 1.0, 1.1), (10 * MIB, 2.9, 3.0)])
def test_the_ffn_of_a_small_model_hardly_differs_however_different_its_parts_are(
    tile_bytes: int, least: float, most: float
) -> None:
    """Nobody is taken for slow because a third of next to nothing took it more than a third of the time."""
    weights = (ShareWeight(3, 3), ShareWeight(1, 1))
    model = replace(MODEL, ffn_tile_bytes=(tile_bytes,) * 3, last_tile_bytes=(tile_bytes,) * 3)
    first, second = arranged(
        placement(weights=weights, model=model, memory_bytes=99 * GIB)((machine(),), ())
    ).assignments
    assert len(first.share.ffn) == 3 * len(second.share.ffn)
    assert least < first.ffn_s / second.ffn_s < most


def test_a_machine_without_an_ffn_has_no_pace() -> None:
    weights = (ShareWeight(1, 0), ShareWeight(1, 1))
    first, second = arranged(placement(weights=weights)((machine(),), ())).assignments
    assert first.ffn_s == 0 < second.ffn_s


def test_a_machine_on_a_slow_link_has_no_seat() -> None:
    found = arranged(placement()((machine(link=LinkSpeed(1.0, 1e3)),), ()))
    assert len(found.assignments) == 1
    assert found.spare["w-1"].kind == "slower"
    assert "its link's round trip takes 1.0 s" in found.spare["w-1"].why


def test_a_plan_that_serves_is_kept_unless_another_is_clearly_faster() -> None:
    """A second worker that adds little is a spare; without the first one, it takes its place."""
    first, slow = machine("w-1", speed=4e9), machine("w-2", speed=3e8)
    alone = arranged(placement()((first, slow), ("w-1",)))
    assert [assignment.machine for assignment in alone.assignments] == ["", "w-1"]
    assert spare(alone) == {
        "w-2": (
            "slower",
            "a token takes about 24 ms with it and 26 ms without it (not worth starting every node anew); the master's "
            "--min-workers 2 takes it in",
        )
    }
    assert len(arranged(placement(min_workers=2)((first, slow), ("w-1",))).assignments) == 3
    fast = machine("w-2", speed=8e9)
    joined = arranged(placement()((first, fast), ("w-1",)))
    assert {assignment.machine for assignment in joined.assignments} == {"", "w-1", "w-2"}
    replaced = arranged(placement()((fast,), ("w-1",)))
    assert [assignment.machine for assignment in replaced.assignments] == ["", "w-2"]


def test_of_two_that_came_too_late_each_is_told_its_own_reason() -> None:
    far = machine("w-3", link=LinkSpeed(1.0, 1e3))
    machines = (machine("w-1", speed=4e9), machine("w-2", speed=3e8), far)
    found = arranged(placement()(machines, ("w-1",)))
    assert [assignment.machine for assignment in found.assignments] == ["", "w-1"]
    assert "not worth starting" in found.spare["w-2"].why
    assert "its link's round trip takes 1.0 s" in found.spare["w-3"].why


@pytest.mark.parametrize(("min_workers", "weights"), [(0, None), (1, None), (1, "1,1")])
def test_a_worker_whose_memory_holds_no_share_is_told_so_whatever_becomes_of_the_plan(
    min_workers: int, weights: str | None
) -> None:
    """It does not count as a worker either."""
    small = machine("w-1")
    small = replace(small, offer=replace(small.offer, memory_bytes=100 * MIB))
    place = placement(min_workers=min_workers, weights=parse_shares(weights, 2) if weights else None)
    found = place((small,), ())
    assert isinstance(found, NoPlan) == bool(min_workers)
    ((kind, why),) = spare(found).values()
    assert kind == "too small"
    assert "the least that works for the model is" in why
    if weights is None:
        assert len(arranged(place((small, machine("w-2")), ())).assignments) == 2


def test_too_few_workers_is_said_in_words() -> None:
    assert refused(placement(min_workers=2)((machine(),), ())) == "1 of 2 workers here: waiting for 1 more"


def test_a_model_that_does_not_fit_is_said_in_words() -> None:
    assert OWN_NAME in refused(placement(memory_bytes=0)((), ()))


def test_given_shares_wait_for_as_many_workers_and_leave_more_spare() -> None:
    given_shares = placement(weights=parse_shares("1,1", 2))
    assert refused(given_shares((), ())) == "0 of 1 worker of --shares here: waiting for the rest"
    found = arranged(given_shares((machine("w-1"), machine("w-2")), ()))
    assert [assignment.machine for assignment in found.assignments] == ["", "w-1"]
    assert spare(found) == {
        "w-2": ("shares", "others came first, and the master's --shares have no part for more")
    }


def test_why_is_no_part_of_a_plan() -> None:
    """The same shares for another reason are no cause to start a new epoch."""
    (assignment,) = arranged(placement()((), ())).assignments
    assert replace(assignment, why="another") == assignment


LINKS = st.one_of(
    st.none(), st.builds(LinkSpeed, st.floats(1e-6, 1e9), st.one_of(st.just(0.0), st.floats(1.0, 1e13)))
)


def allowed(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of a message may have, and its extremes often."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if hint is bool:
        return st.booleans()
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: allowed(one) for name, one in hints.items()})
    kind, bound = arguments
    if kind is str:
        return st.text(max_size=min(bound.count, 8))
    low, high = kind(bound.low), kind(bound.high)
    extremes = st.sampled_from([low, high, *([kind(0)] if bound.or_zero else [])])
    return extremes | (st.integers(low, high) if kind is int else st.floats(low, high))


@st.composite
def claimed(draw: st.DrawFn) -> tuple[Machine, ...]:
    """Up to four machines with any values that a message can carry."""
    return tuple(
        Machine(f"w-{number}", draw(allowed(Offer)), 0.0, 0.0, link=draw(LINKS))
        for number in range(draw(st.integers(0, 4)))
    )


def test_the_claims_that_are_tried_are_those_that_a_message_can_carry() -> None:
    """Of every field of an offer there are two values at least."""
    seen: dict[str, set[Any]] = {}

    @settings(max_examples=100, database=None)
    @given(allowed(Offer))
    def collect(found: Offer) -> None:
        encode(found)
        for name, value in asdict(found).items():
            seen.setdefault(name, set()).add(repr(value))

    collect()
    assert {name for name, values in seen.items() if len(values) < 2} == set()


def test_a_step_that_never_ends_is_a_reason_too() -> None:
    """Bytes of weights by the rate of a disk that hardly reads are no finite number of seconds."""
    assert "a token takes about over 30 years with it and 24 ms without it" in slower(inf, 0.024, "x", 1).why


@settings(max_examples=300)
@given(claimed(), st.integers(0, 3), st.sampled_from([0, 100 * MIB, GIB, 4 * GIB]), st.booleans())
def test_no_claim_of_a_worker_breaks_the_planner(
    machines: tuple[Machine, ...], min_workers: int, memory_bytes: int, quantised: bool
) -> None:
    """A worker that lies harms its own share at most: there are assignments that cover everything once, or a reason."""
    answer = placement(memory_bytes, min_workers, model=replace(MODEL, quantised=quantised))(machines, ())
    if isinstance(answer, NoPlan):
        assert answer.reason
        return
    found = answer.assignments
    assert found[0].machine == ""
    assert len({assignment.machine for assignment in found}) == len(found)
    for units, total in (
        ([assignment.share.attention for assignment in found], SHAPE.heads),
        ([assignment.share.ffn for assignment in found], SHAPE.ffn_tiles),
    ):
        covered = [unit for share in units for unit in range(share.start, share.stop)]
        assert covered == list(range(total))
    assert all(1 <= assignment.threads <= 1024 for assignment in found)
