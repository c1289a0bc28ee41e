import re
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.planner.test_solve import MODEL as WITH_HEAD
from tpiedge.planner import solve as solve_module
from tpiedge.planner.capacity import MOST_MACHINES, Allocation, allocate, master_too_small, too_small
from tpiedge.planner.fractions import node_bound
from tpiedge.planner.needs import NODE_BASE_BYTES, Infeasible, node_need
from tpiedge.planner.prediction import MachineFacts, least_step_s, measured, predict
from tpiedge.planner.solve import Plan, ShareWeight
from tpiedge.units import GIB, MIB
from tpiedge.wire.fields import Keeping

# 32 layers of 96 MiB: 3 GiB; 64 allreduces per step. No head, to make the numbers plain.
MODEL = replace(WITH_HEAD, resident_bytes=0, head_bytes=0, row_bytes=8192)
MASTER = MachineFacts(3 * GIB, name="laptop")
ALL = Keeping("all")


def worker(name: str, speed: float, round_trip_s: float = 0.0, **more) -> MachineFacts:
    return MachineFacts(speed, name=name, round_trip_s=round_trip_s, **more)


def bounds_of(model, machines):
    return [node_bound(model, min(index, 1), machine) for index, machine in enumerate(machines)]


def allocated(found: Allocation | Infeasible) -> Allocation:
    assert isinstance(found, Allocation), found
    return found


def reasons(machines: list[MachineFacts]) -> dict[str, str]:
    found = allocated(allocate(MODEL, machines))
    why = dict(zip(found.members, found.reasons, strict=True)) | {
        at: one.why for at, one in found.spare.items()
    }
    return {machine.name: why[at] for at, machine in enumerate(machines)}


def kinds(found: Allocation | Infeasible) -> list[str]:
    return [one.kind for one in allocated(found).spare.values()]


def test_head_with_other_precision_uses_head_speed():
    model = replace(MODEL, int8=True, head_bytes=GIB)
    apart = replace(MASTER, head_speed=GIB / 2)
    for machine, head_s in ((MASTER, 1 / 3), (apart, 2.0)):
        found = allocated(allocate(model, [machine, worker("pi", GIB)]))
        assert found.plan.head_s == pytest.approx(head_s)
        assert found.plan.step_s == pytest.approx(0.75 + head_s)
        assert [len(share.along("ffn")) for share in found.plan.shares] == [48, 16]
        machines = [machine, worker("pi", GIB)]
        least_s = least_step_s(model, machines, bounds_of(model, machines))
        assert least_s == pytest.approx(found.plan.step_s)


@pytest.mark.parametrize(
    ("round_trip_s", "takes_part"),
    [
        (0.0, True),
        # Alone a step takes 1 s, with the Pi 0.75 s and 64 half round trips.
        (0.0077, True),
        (0.0080, False),
        (1.0, False),
    ],
)
def test_worker_that_slows_the_plan_is_left_out(round_trip_s, takes_part):
    found = allocated(allocate(MODEL, [MASTER, worker("pi", GIB, round_trip_s)]))
    assert found.members == ((0, 1) if takes_part else (0,))


def test_spare_reason_gives_predicted_times():
    machines = [MASTER, worker("pi", GIB, 0.020)]
    assert reasons(machines)["pi"] == (
        "answers would be slower with it (1.4 s instead of 1.0 s per token; 64 exchanges; a round trip takes 20 ms); "
        "to use it anyway, start the master with --min-workers 1"
    )
    assert kinds(allocate(MODEL, machines)) == ["slower"]
    assert reasons(machines)["laptop"] == "3.2 GB/s of weights; computes 100% of the layers"


@pytest.mark.parametrize("consent", ["keep_bytes", "park_bytes"])
def test_pages_on_disk_and_their_moves_need_memory(consent: str):
    without, given = (
        node_need(MODEL, 1, MODEL.shape.whole, one)
        for one in (worker("pi", GIB), replace(worker("pi", GIB), **{consent: 10**9}))
    )
    pages = 2 * sum(heads * nbytes for heads, nbytes in MODEL.kv.items())
    index = 400 * (10**9 // sum(MODEL.kv.values()))
    assert given.total_bytes - without.total_bytes == pages + index > pages > 0


def test_min_workers_are_waited_for():
    found = allocate(MODEL, [MASTER, worker("pi", GIB)], min_workers=2)
    assert found == Infeasible("1 more worker needed (--min-workers 2)")


def test_a_model_larger_than_all_memories_streams():
    memory = NODE_BASE_BYTES + GIB // 2
    machines = [
        replace(MASTER, memory_bytes=memory, disk_bytes_per_s=GIB),
        worker("pi", GIB, memory_bytes=memory, disk_bytes_per_s=GIB / 4),
    ]
    found = allocated(allocate(MODEL, machines))
    laptop, pi = found.plan.needs
    # Disks decide, not processors: the laptop's reads four times as fast.
    assert 3.5 < laptop.streamed_bytes / pi.streamed_bytes < 5
    assert found.plan.layers_s == pytest.approx(laptop.streamed_bytes / GIB, rel=0.05)
    assert reasons(machines)["pi"].endswith("MB of them stream from its disk")
    assert all(need.total_bytes <= memory for need in found.plan.needs)


@pytest.mark.fault("P15", "refused with what is needed and where")
def test_refusal_names_least_memory_needed():
    found = allocate(MODEL, [replace(MASTER, memory_bytes=NODE_BASE_BYTES + 50 * MIB)])
    # The FFN block of 64 MiB, and a third of it that may stay empty.
    assert found == Infeasible(
        "laptop needs at least 462 MB (weights 89.5 MB of 3.2 GB, KV cache 27.3 MB, program 344.8 MB) but may use "
        "396.4 MB; raise its memory limit or shorten the context"
    )


@pytest.mark.parametrize(
    "keeping", [Keeping(), ALL, Keeping("none"), Keeping("auto", window_bytes=100 * MIB), Keeping("auto", 3)]
)
@pytest.mark.parametrize("resident_bytes", [0, MIB])
def test_minimum_memory_named_to_worker_is_exact(keeping, resident_bytes):
    model = replace(MODEL, resident_bytes=32 * resident_bytes, name="demo")
    refusal = too_small(model, worker("tiny", GIB, memory_bytes=100 * MIB, keeping=keeping))
    assert refusal is not None
    assert refusal.kind == "too small"
    (least,) = re.findall(r"the least that works for demo is (\d+) MB: .* --memory \1MB or more", refusal.why)
    enough = worker("tiny", GIB, memory_bytes=int(least) * 10**6, keeping=keeping)
    assert too_small(model, enough) is None
    found = allocated(allocate(model, [MASTER, enough], min_workers=1))
    assert found.members == (0, 1)
    assert found.plan.shares[1].along("ffn"), "it works, and is not merely there"
    assert too_small(model, replace(enough, memory_bytes=(int(least) - 1) * 10**6)) is not None


def test_a_worker_too_slow_for_one_unit_is_left_out():
    machines = [MASTER, worker("clock", 1e6)]
    assert reasons(machines)["clock"] == (
        "answers would be hardly faster with it (1.0 s instead of 1.0 s per token; 64 exchanges; a round trip takes "
        "0 ms); to use it anyway, start the master with --min-workers 1"
    )
    assert kinds(allocate(MODEL, machines)) == ["slower"]


def test_worker_without_disk_space_gets_reason():
    machines = [MASTER, worker("pi", GIB, free_disk_bytes=MIB)]
    words = "its disk has 1.0 MB for weights, which is too little for any share: free some there, or start it again"
    assert reasons(machines)["pi"].startswith(words)
    assert kinds(allocate(MODEL, machines)) == ["no room"]


def test_given_shares_override_the_measurement():
    machines = [MASTER, worker("spare", GIB), worker("pi", GIB, 0.9)]
    found = allocated(allocate(MODEL, machines, [ShareWeight(1, 1), ShareWeight(0, 0), ShareWeight(3, 3)]))
    assert found.members == (0, 2)
    assert [len(share.along("ffn")) for share in found.plan.shares] == [16, 48]
    assert kinds(found) == ["shares"]


def test_unmeasured_speed_is_assumed():
    assert (
        reasons([MASTER, worker("new", 0.0)])["new"]
        == "3.2 GB/s of weights (assumed, not measured); computes 50% of the layers"
    )
    nobody = allocated(allocate(MODEL, [worker("a", 0.0), worker("b", 0.0)]))
    assert [len(share.along("ffn")) for share in nobody.plan.shares] == [32, 32]


SPEEDS = [1e7, 5e8, 3e9, 4e10]


def _machines(count: st.SearchStrategy[int], speeds: list[float]) -> st.SearchStrategy[list[MachineFacts]]:
    amounts = st.none() | st.integers(0, 8 * GIB)
    machine = st.builds(
        MachineFacts,
        st.sampled_from(speeds),
        amounts,
        amounts,
        st.sampled_from([0.0, 1e8, 2e9]),
        st.sampled_from([Keeping(), ALL, Keeping("none"), Keeping("auto", window_blocks=3)]),
        round_trip_s=st.sampled_from([0.0, 0.0002, 0.003, 0.02, 0.3]),
        link_bytes_per_s=st.none() | st.sampled_from([1e6, 1e8]),
    )
    return count.flatmap(lambda number: st.lists(machine, min_size=number, max_size=number))


@given(_machines(st.integers(1, 6), [0.0, *SPEEDS]), st.integers(0, 3))
def test_random_machines_get_a_valid_plan_or_refusal(machines, min_workers):
    found = allocate(MODEL, machines, min_workers=min_workers)
    if isinstance(found, Infeasible):
        assert found.reason
        return
    assert found.members[0] == 0
    assert list(found.members) == sorted(set(found.members))
    assert len(found.members) - 1 >= min_workers
    covered = [
        unit
        for share in found.plan.shares
        for unit in range(share.along("ffn").start, share.along("ffn").stop)
    ]
    assert covered == list(range(64))
    assert all(found.reasons)
    assert {*found.members, *found.spare} == set(range(len(machines)))
    for index, need in zip(found.members, found.plan.needs, strict=True):
        limit = machines[index].memory_bytes
        assert limit is None or need.total_bytes <= limit


@given(_machines(st.integers(1, 5), SPEEDS))
@example(
    # In the plan with the last one it has nothing, and the others another rounding.
    [
        MachineFacts(5e8, name="a", keeping=Keeping("none")),
        MachineFacts(3e9, name="b"),
        MachineFacts(1e7, name="c"),
    ]
)
def test_spare_machine_would_not_speed_up_the_plan(machines):
    found = allocate(MODEL, machines)
    if isinstance(found, Infeasible):
        return
    for index in set(range(len(machines))) - set(found.members):
        wider = predict(MODEL, measured([machines[member] for member in sorted({*found.members, index})]))
        if isinstance(wider, Plan):
            assert wider.step_s >= found.plan.step_s * (1 - 1e-9)


@given(_machines(st.integers(2, 5), SPEEDS))
@example(
    # The fastest set is two machines away from the set of all.
    [
        MachineFacts(1e7, name="a"),
        MachineFacts(5e8, name="b"),
        MachineFacts(3e9, name="c", link_bytes_per_s=1e6),
        MachineFacts(5e8, name="d"),
    ]
)
def test_adding_a_machine_never_slows_the_plan(machines):
    fewer, more = allocate(MODEL, machines[:-1]), allocate(MODEL, machines)
    if isinstance(fewer, Allocation):
        assert isinstance(more, Allocation)
        assert more.plan.step_s <= fewer.plan.step_s * (1 + 1e-9)


@pytest.mark.parametrize(("number", "most"), [(16, 2000), (MOST_MACHINES, 6000)])
def test_planning_many_streaming_machines_is_cheap(monkeypatch, number, most):
    """The control thread makes it between two heartbeats. Counted, not timed."""
    calls = count()

    def counted(*args):
        next(calls)
        return node_need(*args)

    monkeypatch.setattr(solve_module, "node_need", counted)
    memory = NODE_BASE_BYTES + 100 * MIB
    machines = [
        MachineFacts(GIB * (1 + at % 3), memory, None, 1e8 * (1 + at % 5), round_trip_s=2e-4 * at)
        for at in range(number)
    ]
    assert isinstance(allocate(MODEL, machines), Allocation)
    assert next(calls) < most


@pytest.mark.parametrize("count_of_machines", [1, 2, 3])
@pytest.mark.parametrize("keeping", [Keeping(), Keeping("none"), Keeping("auto", window_bytes=100 * MIB)])
def test_least_memory_named_in_refusal_is_enough(count_of_machines, keeping):
    def allocated_with(memory):
        machine = replace(MASTER, memory_bytes=memory, keeping=keeping)
        return allocate(MODEL, [machine] * count_of_machines, min_workers=count_of_machines - 1)

    refusal = allocated_with(200 * MIB)
    assert isinstance(refusal, Infeasible)
    least = max(int(found) for found in re.findall(r"needs at least (\d+) MB", refusal.reason))
    assert isinstance(allocated_with(least * 10**6), Allocation)
    if count_of_machines == 1:  # several may divide otherwise than evenly
        assert isinstance(allocated_with((least - 1) * 10**6), Infeasible)


@given(
    memory=st.integers(0, 2 * GIB),
    head_bytes=st.integers(0, GIB),
    keeping=st.sampled_from((Keeping(), ALL, Keeping("none"))),
    weights=st.sampled_from((None, [ShareWeight(1, 1), ShareWeight(8, 8)])),
)
def test_master_is_too_small_only_if_workers_cannot_help(memory, head_bytes, keeping, weights):
    """A larger master serves with a worker that holds everything else."""
    model = replace(MODEL, head_bytes=head_bytes, head_tile_bytes=head_bytes // 8)
    own = replace(MASTER, memory_bytes=memory, keeping=keeping)
    found = allocate(model, [own, worker("large", GIB, memory_bytes=64 * GIB)], weights)
    small = master_too_small(model, own, weights)
    assert isinstance(found, Infeasible) == (small is not None), (found, small)
