"""Who takes part, with which share and why: tables of machines, and laws for any machines."""

import re
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpiedge.planner import solve as solve_module
from tpiedge.planner.capacity import MOST_MACHINES, Allocation, allocate
from tpiedge.planner.needs import NODE_BASE_BYTES, Infeasible, ModelFacts
from tpiedge.planner.partition import LayerShape, ShareWeight
from tpiedge.planner.prediction import Demand, MachineFacts, Prediction, least_step_s, machine_bounds, predict
from tpiedge.planner.reasons import master_too_small, too_small
from tpiedge.planner.streaming import node_need
from tpiedge.units import GIB, MIB
from tpiedge.wire.weights import Keeping

# 32 layers of 96 MiB: 3 GiB; 64 allreduces per step. No head, to make the numbers plain.
MODEL = ModelFacts(
    shape=LayerShape(heads=32, kv_heads=8, ffn_tiles=64),
    num_layers=32,
    query_unit_bytes=(MIB // 4, MIB // 4),
    kv_unit_bytes=(MIB, MIB),
    ffn_tile_bytes=(MIB // 3, MIB // 3, MIB - 2 * (MIB // 3)),
    last_tile_bytes=(MIB // 3, MIB // 3, MIB - 2 * (MIB // 3)),
    resident_bytes=0,
    head_bytes=0,
    kv_part_bytes=8192,
    kv_page_tokens=8,
    row_bytes=8192,
)
DEMAND = Demand(MODEL, capacity_tokens=100)
MASTER = MachineFacts("laptop", 3 * GIB)
ALL = Keeping("all")


def worker(name: str, speed: float, round_trip_s: float = 0.0, **more) -> MachineFacts:
    return MachineFacts(name, speed, round_trip_s=round_trip_s, **more)


def allocated(found: Allocation | Infeasible) -> Allocation:
    assert isinstance(found, Allocation), found
    return found


def reasons(found: Allocation | Infeasible) -> dict[str, str]:
    return {one.name: one.reason for one in allocated(found).allotments}


def kinds(found: Allocation | Infeasible) -> dict[str, str]:
    """Of those that are left out."""
    return {one.name: one.kind for one in allocated(found).allotments if one.kind is not None}


def test_shares_follow_measured_speed():
    found = allocated(allocate(DEMAND, [MASTER, worker("pi", GIB)]))
    assert found.members == (0, 1)
    assert [len(one.share.ffn) for one in found.allotments] == [48, 16]
    assert found.prediction.step_s == pytest.approx(0.75)
    assert reasons(found) == {
        "laptop": "3.2 GB/s of weights, 75% of the cluster",
        "pi": "1.1 GB/s of weights, 25% of the cluster",
    }


def test_a_head_of_other_weights_than_the_layers_has_a_speed_of_its_own():
    demand = replace(DEMAND, model=replace(MODEL, quantised=True, head_bytes=GIB))
    apart = replace(MASTER, head_bytes_per_s=GIB / 2)
    for machine, head_s in ((MASTER, 1 / 3), (apart, 2.0)):
        found = allocated(allocate(demand, [machine, worker("pi", GIB)]))
        assert found.plan.head_s == pytest.approx(head_s)
        assert found.prediction.step_s == pytest.approx(0.75 + head_s)
        assert [len(one.share.ffn) for one in found.allotments] == [48, 16]
        machines = [machine, worker("pi", GIB)]
        least_s = least_step_s(demand, machines, machine_bounds(demand, machines))
        assert least_s == pytest.approx(found.prediction.step_s)


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
def test_a_worker_that_costs_more_than_it_computes_is_left_out(round_trip_s, takes_part):
    found = allocated(allocate(DEMAND, [MASTER, worker("pi", GIB, round_trip_s)]))
    assert found.members == ((0, 1) if takes_part else (0,))
    assert found.allotments[1].rank == (1 if takes_part else None)


def test_who_is_left_out_is_told_the_numbers():
    found = allocate(DEMAND, [MASTER, worker("pi", GIB, 0.020)])
    assert reasons(found)["pi"] == (
        "a token takes about 1.4 s with it and 1.0 s without it (64 exchanges a token; its link's round trip takes "
        "20 ms); the master's --min-workers 1 takes it in"
    )
    assert kinds(found) == {"pi": "slower"}
    assert reasons(found)["laptop"] == "3.2 GB/s of weights, 100% of the cluster"


def test_what_the_user_is_told_to_type_takes_in_everybody_who_is_left_out():
    machines = [MASTER, worker("pi", GIB, 0.020), worker("zero", GIB, 0.030)]
    found = allocate(DEMAND, machines)
    assert kinds(found) == {"pi": "slower", "zero": "slower"}
    assert all("the master's --min-workers 2 takes it in" in reasons(found)[name] for name in kinds(found))
    assert allocated(allocate(replace(DEMAND, min_workers=2), machines)).members == (0, 1, 2)


def test_slow_links_that_help_only_together_are_found():
    far = [worker(f"far-{number}", 3 * GIB, 0.007) for number in range(4)]
    found = allocated(allocate(DEMAND, [MASTER, *far]))
    assert found.members == (0, 1, 2, 3, 4)


def test_three_nodes_pay_whole_round_trips():
    machines = [MASTER, worker("a", GIB, 0.001), worker("b", GIB, 0.002)]
    two = predict(DEMAND, machines[:2])
    three = predict(DEMAND, machines)
    assert isinstance(two, Prediction)
    assert isinstance(three, Prediction)
    assert two.reduce_s == pytest.approx(64 * 0.001 / 2)
    assert three.reduce_s == pytest.approx(64 * 0.002)


def test_the_link_s_bandwidth_counts():
    slow = replace(worker("wifi", GIB), link_bytes_per_s=1e6)
    two = predict(DEMAND, [MASTER, slow])
    assert isinstance(two, Prediction)
    assert two.reduce_s == pytest.approx(64 * 8192 / 1e6)
    assert allocated(allocate(DEMAND, [MASTER, slow])).members == (0,)


def test_min_workers_are_waited_for():
    found = allocate(replace(DEMAND, min_workers=2), [MASTER, worker("pi", GIB)])
    assert found == Infeasible("1 of 2 workers here: waiting for 1 more")


def test_min_workers_take_part_whatever_they_cost():
    machines = [MASTER, worker("slow", GIB, 0.5), worker("slower", GIB, 0.9)]
    found = allocated(allocate(replace(DEMAND, min_workers=1), machines))
    assert found.members == (0, 1)


def test_memory_overrides_speed_and_is_named():
    memory = NODE_BASE_BYTES + GIB
    found = allocated(
        allocate(DEMAND, [replace(MASTER, memory_bytes=memory, keeping=ALL), worker("pi", 3 * GIB)])
    )
    assert len(found.allotments[0].share.ffn) < 32
    assert reasons(found)["laptop"].endswith("% of the cluster; limited by memory 1.4 GB")
    assert "limited" not in reasons(found)["pi"]


def test_a_model_larger_than_all_memories_streams():
    memory = NODE_BASE_BYTES + GIB // 2
    machines = [
        replace(MASTER, memory_bytes=memory, disk_bytes_per_s=GIB),
        worker("pi", GIB, memory_bytes=memory, disk_bytes_per_s=GIB / 4),
    ]
    found = allocated(allocate(DEMAND, machines))
    laptop, pi = found.allotments
    # Disks decide, not processors: the laptop's reads four times as fast.
    assert 3.5 < (laptop.need.streamed_bytes / pi.need.streamed_bytes) < 5
    assert found.prediction.plan.layers_s == pytest.approx(laptop.need.streamed_bytes / GIB, rel=0.05)
    assert reasons(found)["pi"].endswith("MB of them stream from its disk")
    assert all(one.need.total_bytes <= memory for one in found.allotments)


def test_a_slow_machine_with_memory_is_better_than_a_disk():
    small = replace(MASTER, memory_bytes=NODE_BASE_BYTES + 2 * GIB, disk_bytes_per_s=1e8)
    found = allocated(allocate(DEMAND, [small, worker("old", GIB)]))
    assert found.allotments[0].need.streamed_bytes == 0
    assert found.allotments[0].fraction < 2 / 3
    fast_disk = replace(small, disk_bytes_per_s=4e9)
    assert (
        allocated(allocate(DEMAND, [fast_disk, worker("old", GIB / 8)])).allotments[0].need.streamed_bytes > 0
    )


def test_the_least_that_works_is_named():
    found = allocate(DEMAND, [replace(MASTER, memory_bytes=NODE_BASE_BYTES + 50 * MIB)])
    # The FFN block of 64 MiB, and a third of it that may stay empty.
    assert found == Infeasible(
        "laptop needs at least 462 MB (weights 89.5 MB of 3.2 GB, KV cache 27.3 MB, program 344.8 MB) but may use "
        "396.4 MB; raise its memory limit or shorten the context"
    )


def test_disk_overrides_speed_and_is_named():
    found = allocate(DEMAND, [MASTER, worker("pi", 3 * GIB, free_disk_bytes=GIB // 2)])
    assert reasons(found)["pi"].endswith("; limited by free disk 536.9 MB")


def test_a_worker_without_room_for_the_program_is_left_out():
    found = allocated(allocate(DEMAND, [MASTER, worker("tiny", GIB, memory_bytes=100 * MIB)]))
    assert found.members == (0,)
    assert reasons(found)["tiny"] == (
        "it offers 104.9 MB, but the least that works for the model is 347 MB: start it again with --memory 347MB or "
        "more"
    )
    assert kinds(found) == {"tiny": "too small"}


def test_a_worker_without_room_on_its_disk_is_left_out():
    resident = replace(DEMAND, model=replace(MODEL, resident_bytes=MIB))
    found = allocated(allocate(resident, [MASTER, worker("full", GIB, free_disk_bytes=MIB)]))
    assert found.members == (0,)
    assert reasons(found)["full"] == "its disk has 1.0 MB for weights, which is too little for any share"
    assert kinds(found) == {"full": "no room"}


@pytest.mark.parametrize(
    "keeping", [Keeping(), ALL, Keeping("none"), Keeping("auto", window_bytes=100 * MIB), Keeping("auto", 3)]
)
@pytest.mark.parametrize("resident_bytes", [0, MIB])
def test_the_least_memory_that_a_worker_is_told_works_and_less_does_not(keeping, resident_bytes):
    demand = Demand(replace(MODEL, resident_bytes=resident_bytes), 100, min_workers=1, model_name="demo")
    refusal = too_small(demand, worker("tiny", GIB, memory_bytes=100 * MIB, keeping=keeping))
    assert refusal is not None
    assert refusal.kind == "too small"
    (least,) = re.findall(r"the least that works for demo is (\d+) MB: .* --memory \1MB or more", refusal.why)
    enough = worker("tiny", GIB, memory_bytes=int(least) * 10**6, keeping=keeping)
    assert too_small(demand, enough) is None
    found = allocated(allocate(demand, [MASTER, enough]))
    assert found.members == (0, 1)
    assert found.plan.shares[1].ffn, "it works, and is not merely there"
    assert too_small(demand, replace(enough, memory_bytes=(int(least) - 1) * 10**6)) is not None


@pytest.mark.parametrize("free", [MIB, 20 * MIB])
def test_a_disk_that_holds_no_piece_is_told_from_a_machine_that_is_too_slow(free):
    """The layers alone may have no part that is small enough for it."""
    found = allocated(allocate(DEMAND, [MASTER, worker("full", 3 * GIB, free_disk_bytes=free)]))
    assert found.members == (0,)
    assert "for weights, which is too little for any share" in reasons(found)["full"]
    assert kinds(found) == {"full": "no room"}


def test_a_machine_without_a_limit_is_never_too_small():
    assert too_small(DEMAND, MASTER) is None


def test_a_slow_link_is_taken_where_the_memory_is_needed():
    master = replace(MASTER, memory_bytes=NODE_BASE_BYTES + 2 * GIB, keeping=ALL)
    assert allocated(allocate(DEMAND, [master, worker("far", GIB, 0.5)])).members == (0, 1)


def test_a_worker_too_slow_for_one_unit_is_left_out():
    found = allocate(DEMAND, [MASTER, worker("clock", 1e6)])
    assert reasons(found)["clock"] == (
        "for its 1.0 MB/s of weights even the smallest piece of work is too much"
    )
    assert kinds(found) == {"clock": "slower"}


def test_what_was_not_measured_is_assumed():
    found = allocate(DEMAND, [MASTER, worker("new", 0.0)])
    assert reasons(found)["new"] == "3.2 GB/s of weights (assumed, not measured), 50% of the cluster"
    nobody = allocated(allocate(DEMAND, [worker("a", 0.0), worker("b", 0.0)]))
    assert [len(share.ffn) for share in nobody.plan.shares] == [32, 32]


def test_what_cannot_fit_is_refused_with_names():
    machines = [
        replace(MASTER, memory_bytes=GIB, keeping=ALL),
        worker("pi", GIB, memory_bytes=GIB, keeping=ALL),
    ]
    found = allocate(DEMAND, machines)
    assert isinstance(found, Infeasible)
    assert "laptop takes" in found.reason
    assert "pi takes" in found.reason
    assert "too little" in found.reason


def test_given_shares_override_the_measurement():
    machines = [MASTER, worker("spare", GIB), worker("pi", GIB, 0.9)]
    found = allocated(allocate(DEMAND, machines, [ShareWeight(1, 1), ShareWeight(0, 0), ShareWeight(3, 3)]))
    assert found.members == (0, 2)
    assert [len(one.share.ffn) for one in found.allotments] == [16, 0, 48]
    assert reasons(found)["pi"] == "as --shares says"
    assert reasons(found)["spare"] == "its weight in --shares is 0"
    assert kinds(found) == {"spare": "shares"}


def test_given_shares_that_do_not_fit_are_refused_with_the_name():
    machines = [MASTER, worker("spare", GIB), worker("pi", GIB, memory_bytes=GIB, keeping=ALL)]
    found = allocate(DEMAND, machines, [ShareWeight(1, 1), ShareWeight(0, 0), ShareWeight(3, 3)])
    assert isinstance(found, Infeasible)
    assert found.reason.startswith("pi needs")


SPEEDS = [1e7, 5e8, 3e9, 4e10]


def _machines(count: st.SearchStrategy[int], speeds: list[float]) -> st.SearchStrategy[list[MachineFacts]]:
    amounts = st.none() | st.integers(0, 8 * GIB)
    machine = st.builds(
        MachineFacts,
        st.sampled_from(["a", "b"]),
        st.sampled_from(speeds),
        amounts,
        amounts,
        st.sampled_from([0.0, 0.0002, 0.003, 0.02, 0.3]),
        st.none() | st.sampled_from([1e6, 1e8]),
        st.sampled_from([0.0, 1e8, 2e9]),
        st.sampled_from([Keeping(), ALL, Keeping("none"), Keeping("auto", window_blocks=3)]),
    )
    return count.flatmap(lambda number: st.lists(machine, min_size=number, max_size=number))


@given(_machines(st.integers(1, 6), [0.0, *SPEEDS]), st.integers(0, 3))
def test_any_machines_are_refused_or_get_a_plan_that_holds(machines, min_workers):
    demand = replace(DEMAND, min_workers=min_workers)
    found = allocate(demand, machines)
    if isinstance(found, Infeasible):
        assert found.reason
        return
    assert found.members[0] == 0
    assert list(found.members) == sorted(set(found.members))
    assert len(found.members) - 1 >= min_workers
    covered = [unit for share in found.plan.shares for unit in range(share.ffn.start, share.ffn.stop)]
    assert covered == list(range(64))
    assert sum(one.fraction for one in found.allotments) == pytest.approx(1)
    for index, (machine, one) in enumerate(zip(machines, found.allotments, strict=True)):
        assert one.reason
        assert (one.rank is not None) == (one.kind is None) == (index in found.members)
        if one.need is not None and machine.memory_bytes is not None:
            assert one.need.total_bytes <= machine.memory_bytes


@given(_machines(st.integers(1, 5), SPEEDS))
@example(
    # In the plan with the last one it has nothing, and the others another rounding.
    [MachineFacts("a", 5e8, keeping=Keeping("none")), MachineFacts("b", 3e9), MachineFacts("c", 1e7)]
)
def test_nobody_is_left_out_who_alone_would_make_it_faster(machines):
    found = allocate(DEMAND, machines)
    if isinstance(found, Infeasible):
        return
    for index in set(range(len(machines))) - set(found.members):
        wider = predict(DEMAND, [machines[member] for member in sorted({*found.members, index})])
        if isinstance(wider, Prediction):
            assert wider.step_s >= found.prediction.step_s * (1 - 1e-9)


@given(_machines(st.integers(2, 5), SPEEDS))
@example(
    # The fastest set is two machines away from the set of all.
    [
        MachineFacts("a", 1e7),
        MachineFacts("b", 5e8),
        MachineFacts("c", 3e9, link_bytes_per_s=1e6),
        MachineFacts("d", 5e8),
    ]
)
def test_another_machine_is_never_a_loss(machines):
    fewer, more = allocate(DEMAND, machines[:-1]), allocate(DEMAND, machines)
    if isinstance(fewer, Allocation):
        assert isinstance(more, Allocation)
        assert more.prediction.step_s <= fewer.prediction.step_s * (1 + 1e-9)


@pytest.mark.parametrize(("number", "most"), [(16, 2000), (MOST_MACHINES, 6000)])
def test_a_plan_of_many_streaming_machines_costs_little(monkeypatch, number, most):
    """The control thread makes it between two heartbeats. Counted, not timed."""
    calls = count()

    def counted(*args):
        next(calls)
        return node_need(*args)

    monkeypatch.setattr(solve_module, "node_need", counted)
    memory = NODE_BASE_BYTES + 100 * MIB
    machines = [
        MachineFacts(f"w{at}", GIB * (1 + at % 3), memory, None, 2e-4 * at, None, 1e8 * (1 + at % 5))
        for at in range(number)
    ]
    assert isinstance(allocate(DEMAND, machines), Allocation)
    assert next(calls) < most


@pytest.mark.parametrize("count_of_machines", [1, 2, 3])
@pytest.mark.parametrize("keeping", [Keeping(), Keeping("none"), Keeping("auto", window_bytes=100 * MIB)])
def test_the_least_that_a_refusal_names_works(count_of_machines, keeping):
    def allocated_with(memory):
        machine = replace(MASTER, memory_bytes=memory, keeping=keeping)
        return allocate(replace(DEMAND, min_workers=count_of_machines - 1), [machine] * count_of_machines)

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
def test_a_master_is_too_small_only_where_no_worker_helps(memory, head_bytes, keeping, weights):
    """And one that is not, can serve with a worker that holds everything else."""
    demand = replace(DEMAND, model=replace(MODEL, head_bytes=head_bytes, head_tile_bytes=head_bytes // 8))
    own = replace(MASTER, memory_bytes=memory, keeping=keeping)
    found = allocate(demand, [own, worker("large", GIB, memory_bytes=64 * GIB)], weights)
    small = master_too_small(demand, own, weights)
    assert isinstance(found, Infeasible) == (small is not None), (found, small)
