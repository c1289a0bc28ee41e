from dataclasses import replace

import pytest
from msgspec import structs

from tests.unit.master.players import offer
from tests.unit.planner.models import alike
from tpiedge.kernels.shared_library import NO_ISA
from tpiedge.master.assignments import Assignments
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.roster import Machine
from tpiedge.planner import prediction
from tpiedge.planner.needs import LayerShape, ModelFacts
from tpiedge.planner.solve import ShareWeight, parse_shares
from tpiedge.units import GIB, MIB
from tpiedge.wire.epochs import Capacity
from tpiedge.wire.probing import LinkSpeed

SHAPE = LayerShape(heads=8, kv_heads=4, ffn_tiles=16, layers=4)
TILE = (MIB // 3, MIB // 3, MIB - 2 * (MIB // 3))
MODEL = alike(4, SHAPE, ((MIB // 2,) * 2, (MIB // 2,) * 2, TILE), resident_bytes=0, head_bytes=MIB)


def placement(
    memory_bytes: int = 4 * GIB,
    min_workers: int = 0,
    weights: tuple[ShareWeight, ...] | None = None,
    model: ModelFacts = MODEL,
) -> NodePlacement:
    own = prediction.MachineFacts(1e9, memory_bytes, name=OWN_NAME)
    return NodePlacement(replace(model, capacity_tokens=64), lambda: own, 2, weights, min_workers)


def machine(
    name: str = "w-1",
    link: LinkSpeed | None = None,
    threads: int = 3,
    speed: float = 1e9,
    panel_speed: float = 1e9,
) -> Machine:
    given_offer = structs.replace(
        offer(threads=threads),
        capacity=Capacity(speed, panel_speed),
        memory_bytes=4 * GIB,
        free_disk_bytes=64 * GIB,
    )
    return Machine(name, given_offer, 0.0, 0.0, link=link)


def arranged(found: Assignments) -> Assignments:
    assert found.assignments, found
    return found


def refused(found: Assignments) -> str:
    assert not found.assignments, found
    return found.reason


def spare(found: Assignments) -> dict[str, tuple[str, str]]:
    return {name: (reason.kind, reason.why) for name, reason in found.spare.items()}


def test_the_master_alone_takes_everything() -> None:
    (assignment,) = arranged(placement()((), ())).assignments
    assert (assignment.machine, assignment.threads, assignment.speed) == ("", 2, 1e9)
    assert (len(assignment.share.along("attention")), len(assignment.share.along("ffn"))) == (8, 16)


@pytest.mark.fault("P17", "one that stays slow gets less: plans are made with the speed that it shows")
@pytest.mark.parametrize(
    ("int8", "slowdown", "tiles", "speed"),
    [(False, 1.0, [4, 12], 3e9), (True, 1.0, [12, 4], 1e9 / 3), (False, 9.0, [12, 4], 1e9 / 3)],
)
def test_plan_uses_worker_speed_for_precision_and_slowdown(
    int8: bool, slowdown: float, tiles: list[int], speed: float
) -> None:
    """A processor may be fast with weights in bf16 and slow with panels, or slower than it measured."""
    worker = replace(machine(speed=3e9, panel_speed=1e9 / 3), slowdown=slowdown)
    assignments = arranged(placement(model=replace(MODEL, int8=int8))((worker,), ())).assignments
    assert [len(assignment.share.along("ffn")) for assignment in assignments] == tiles
    assert assignments[1].speed == speed


def test_quantised_model_excludes_machine_without_native_kernels() -> None:
    """The spare machine gets a reason; in another model it has a part."""
    able, lacking = machine("w-1"), machine("w-2")
    lacking = replace(lacking, offer=structs.replace(lacking.offer, isa=NO_ISA))
    found = arranged(placement(model=replace(MODEL, needs_native=True))((able, lacking), ()))
    assert [one.machine for one in found.assignments] == ["", "w-1"]
    kind, why = spare(found)["w-2"]
    assert kind == "no room"
    assert "has no native kernels" in why
    assert "make setup" in why
    none = placement(min_workers=1, model=replace(MODEL, needs_native=True))((lacking,), ())
    assert refused(none) == "1 more worker needed (--min-workers 1)"
    assert list(none.spare) == ["w-2"]
    assert len(arranged(placement()((able, lacking), ())).assignments) == 3


def test_plan_says_which_machines_give_disk_space_to_pages() -> None:
    keeps, parks = machine("w-1"), machine("w-2")
    keeps = replace(keeps, offer=structs.replace(keeps.offer, keep_bytes=1))
    parks = replace(parks, offer=structs.replace(parks.offer, park_bytes=1))
    found = arranged(placement(min_workers=2)((keeps, parks), ())).assignments
    assert [(one.keeps, one.parks) for one in found] == [(False, False), (True, False), (False, True)]
    own = replace(placement().own(), keep_bytes=1, park_bytes=1)
    (alone,) = arranged(replace(placement(), own=lambda: own)((), ())).assignments
    assert (alone.keeps, alone.parks) == (True, True)


def test_a_machine_on_a_slow_link_gets_no_part() -> None:
    found = arranged(placement()((machine(link=LinkSpeed(1.0, 1e3)),), ()))
    assert len(found.assignments) == 1
    assert found.spare["w-1"].kind == "slower"
    assert "a round trip takes 1.0 s" in found.spare["w-1"].why


def test_serving_plan_is_kept_unless_new_is_clearly_faster() -> None:
    """A second worker that adds little is a spare; without the first one, it takes its place."""
    first, slow = machine("w-1", speed=4e9), machine("w-2", speed=3e8)
    alone = arranged(placement()((first, slow), ("w-1",)))
    assert [assignment.machine for assignment in alone.assignments] == ["", "w-1"]
    assert spare(alone) == {
        "w-2": (
            "slower",
            "answers would be hardly faster with it (24 ms instead of 26 ms per token; not worth restarting every "
            "node); to use it anyway, start the master with --min-workers 2",
        )
    }
    assert len(arranged(placement(min_workers=2)((first, slow), ("w-1",))).assignments) == 3
    fast = machine("w-2", speed=8e9)
    joined = arranged(placement()((first, fast), ("w-1",)))
    assert {assignment.machine for assignment in joined.assignments} == {"", "w-1", "w-2"}
    replaced = arranged(placement()((fast,), ("w-1",)))
    assert [assignment.machine for assignment in replaced.assignments] == ["", "w-2"]


@pytest.mark.parametrize(("min_workers", "weights"), [(0, None), (1, None), (1, "1,1")])
def test_worker_too_small_for_any_share_gets_reason(min_workers: int, weights: str | None) -> None:
    small = machine("w-1")
    small = replace(small, offer=structs.replace(small.offer, memory_bytes=100 * MIB))
    place = placement(min_workers=min_workers, weights=parse_shares(weights, 2) if weights else None)
    found = place((small,), ())
    assert bool(found.reason) == bool(min_workers)
    ((kind, why),) = spare(found).values()
    assert kind == "too small"
    assert "the least that works for the model is" in why
    if weights is None:
        assert len(arranged(place((small, machine("w-2")), ())).assignments) == 2


def test_refusal_names_master_too_small_for_model() -> None:
    assert OWN_NAME in refused(placement(memory_bytes=0)((), ()))


def test_shares_wait_for_workers_and_leave_extra_spare() -> None:
    given_shares = placement(weights=parse_shares("1,1", 2))
    assert refused(given_shares((), ())) == "0 of 1 worker of --shares here: waiting for the rest"
    found = arranged(given_shares((machine("w-1"), machine("w-2")), ()))
    assert [assignment.machine for assignment in found.assignments] == ["", "w-1"]
    assert spare(found) == {
        "w-2": ("shares", "others came first, and the master's --shares have no part for more")
    }


@pytest.mark.parametrize(
    ("here", "slots"),
    [("ann bob", "ann bob"), ("bob eve", "eve bob"), ("ann eve fay", "ann eve"), ("eve fay", "eve fay")],
)
def test_shares_slots_are_filled_in_admission_order(here: str, slots: str) -> None:
    """Parts belong to those who were let in first, ann and bob; who is let in next stands in for one that is away."""
    places = {"ann": 0, "bob": 1, "eve": 2, "fay": 3}
    machines = [replace(machine(name), place=places[name]) for name in here.split()]
    found = arranged(placement(weights=parse_shares("1,1,2", 3))(tuple(machines), ()))
    assert [one.machine for one in found.assignments[1:]] == slots.split()
    assert [len(one.share.along("ffn")) for one in found.assignments] == [4, 4, 8]
