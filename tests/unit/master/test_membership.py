"""The laws of membership, as lists of events and the losses they lead to."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tpiedge.errors import ProtocolError
from tpiedge.master.membership import Loss, Membership, NodeState


def make(nodes: int = 2) -> Membership:
    return Membership(nodes, 0.0, timeout_s=1.5, start_s=60.0)


def test_a_cluster_comes_up() -> None:
    cluster = make()
    for state in (NodeState.JOINED, NodeState.LOADING, NodeState.READY):
        cluster.reach(0, state, 1.0)
        assert not cluster.all_in(state)
        cluster.reach(1, state, 1.0)
        assert cluster.all_in(state)
    assert cluster.tick(2.0) == ()


def test_a_silent_node_is_lost_once() -> None:
    cluster = make()
    cluster.reach(0, NodeState.READY, 0.0)
    cluster.reach(1, NodeState.READY, 0.0)
    cluster.heartbeat(0, 1, 2, 3, 1.4)
    assert cluster.tick(1.6) == (Loss(1, "silent for 1.6 s (killed, frozen or cut off)"),)
    assert cluster.tick(1.7) == ()
    assert not cluster.all_in(NodeState.JOINED)


def test_a_loading_node_is_given_more_time() -> None:
    cluster = make(1)
    cluster.reach(0, NodeState.JOINED, 0.0)
    cluster.reach(0, NodeState.LOADING, 0.0)
    assert cluster.tick(8.9) == ()
    assert cluster.tick(9.1) == (Loss(0, "silent for 9.1 s (killed, frozen or cut off)"),)


def test_a_node_that_never_joins_is_lost_after_the_start_limit() -> None:
    cluster = make(1)
    assert cluster.tick(59.0) == ()
    assert cluster.tick(61.0) == (Loss(0, "it did not start within 60 s"),)


def test_the_first_cause_stays() -> None:
    cluster = make()
    assert cluster.lose(1, "killed by signal 9") == (Loss(1, "killed by signal 9"),)
    assert cluster.lose(1, "exit status 1") == ()
    cluster.heartbeat(1, 5, 5, 5, 100.0)
    cluster.reach(1, NodeState.READY, 100.0)
    assert cluster.members[1].state is NodeState.LOST


def test_steps_backwards_and_strangers_are_protocol_errors() -> None:
    cluster = make()
    cluster.reach(0, NodeState.READY, 0.0)
    for state in (NodeState.JOINED, NodeState.READY):
        with pytest.raises(ProtocolError, match="already"):
            cluster.reach(0, state, 0.0)
    with pytest.raises(ProtocolError, match="before it has joined"):
        cluster.heartbeat(1, 0, 0, 0, 0.0)
    with pytest.raises(ProtocolError, match="no node 7"):
        cluster.heartbeat(7, 0, 0, 0, 0.0)


class Machine(RuleBasedStateMachine):
    """Random events: a loss is reported exactly once and is final."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = make(3)
        self.now = 0.0
        self.lost: list[int] = []

    @rule(
        rank=st.integers(0, 2), state=st.sampled_from([NodeState.JOINED, NodeState.LOADING, NodeState.READY])
    )
    def reach(self, rank: int, state: NodeState) -> None:
        try:
            self.cluster.reach(rank, state, self.now)
        except ProtocolError:
            assert rank not in self.lost

    @rule(rank=st.integers(0, 2), step=st.integers(0, 9))
    def heartbeat(self, rank: int, step: int) -> None:
        try:
            self.cluster.heartbeat(rank, step, 0, 0, self.now)
        except ProtocolError:
            assert self.cluster.members[rank].state is NodeState.STARTING

    @rule(rank=st.integers(0, 2))
    def lose(self, rank: int) -> None:
        self.lost += [loss.rank for loss in self.cluster.lose(rank, "killed")]

    @rule(seconds=st.floats(0, 70))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.lost += [loss.rank for loss in self.cluster.tick(self.now)]

    @invariant()
    def every_loss_is_reported_once(self) -> None:
        assert len(self.lost) == len(set(self.lost))
        assert set(self.lost) == {m.rank for m in self.cluster.members if m.state is NodeState.LOST}


@pytest.mark.fault("P21", "every loss is seen once, with its first cause")
class TestMachine(Machine.TestCase):
    """Random orders."""
