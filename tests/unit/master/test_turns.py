from dataclasses import replace

import pytest

from tests.unit.master.stories import SERVED, Story, failure, outcome, paused, read, request, two_machines
from tpiedge.errors import TpiedgeError
from tpiedge.master.assignments import Assignments
from tpiedge.master.journal import Paused, PendingAnswer
from tpiedge.master.turns import TURN, Hosted

ONE, OTHER, THIRD = SERVED.pack_id, "pack-of-the-other", "pack-of-the-third"


class Models(Story):
    """A cluster that knows three models; the first one is served."""

    def __init__(self) -> None:
        super().__init__(replace(SERVED, name="one", sequences=2))
        self.refused = ""  # why no plan can be made for the other model
        for pack, name in ((OTHER, "other"), (THIRD, "third")):
            served = replace(SERVED, pack_id=pack, name=name, sequences=2)
            self.master.add_model(Hosted(served, self._planned_for_another))
        two_machines(self)

    def _planned_for_another(self, machines, serving):
        if self.refused:
            return Assignments((), reason=self.refused)
        return self._arranged(machines, serving)

    def ask(self, name: str, pack: str, client: str = "") -> PendingAnswer:
        answering = self.master.submit(replace(request(name), pack=pack), client)
        self.turn()
        return answering

    @property
    def served(self) -> str:
        return self.master.status.pack if self.master.status.ready else ""

    def wait_for_model(self, pack: str) -> None:
        self.wait_for(lambda: self.served == pack)


@pytest.fixture
def story() -> Models:
    return Models()


def test_idle_cluster_switches_to_the_model_of_a_request(story: Models) -> None:
    answering = story.ask("r-1", OTHER)
    story.wait_for_model(OTHER)
    assert [one.pack for one in (story.agents["w-1"].order,) if one is not None] == [OTHER]
    assert story.root.asked == ["r-1"]
    story.finish("r-1")
    assert isinstance(outcome(answering), list)
    story.wait(60.0)
    assert story.served == OTHER, "the last model stays"


@pytest.mark.fault("P23", "an answer that ends within its turn is not interrupted")
def test_running_answer_ends_before_a_switch(story: Models) -> None:
    first, waiting = story.ask("r-1", ONE), story.ask("r-2", OTHER)
    story.wait(5.0)
    assert story.served == ONE
    assert (paused(waiting), story.worker().state) == ("one is served first", "prepared")
    assert story.master.status.reason == "other is next"
    story.finish("r-1")
    assert isinstance(outcome(first), list)
    story.wait_for_model(OTHER)
    assert story.root.asked == ["r-2"]


@pytest.mark.fault("P23", "answers of both pause and go on in turns")
def test_answers_of_both_models_continue_in_turns(story: Models) -> None:
    """A turn of the first model lasts at least 9 times the 1.5 s that a switch is thought to take."""
    first = story.ask("r-1", ONE)
    story.root.token("r-1")
    other = story.ask("r-2", OTHER)
    story.wait(TURN * 1.5 - 2.0)
    assert story.served == ONE
    story.wait_for_model(OTHER)
    assert paused(first) == "switching to a new plan"
    story.root.token("r-2")
    story.turn()
    story.wait(5.0)
    assert paused(first) == "other is served first"
    story.wait_for_model(ONE)
    assert story.root.order("r-1").answer_ids, "it continues where it paused"
    story.finish("r-1")
    assert isinstance(outcome(first), list)
    story.wait_for_model(OTHER)
    story.finish("r-2")
    assert isinstance(outcome(other), list)


@pytest.mark.fault("P23", "none of three models waits for more than the turns of the others")
def test_three_models_have_turns_in_a_circle(story: Models) -> None:
    for number, pack in enumerate((ONE, OTHER, THIRD)):
        story.ask(f"r-{number}", pack)
    order = []
    for _ in range(6):
        order.append(story.served)
        before = story.served
        story.wait_for(lambda: story.served not in ("", before))  # noqa: B023
    assert order == [ONE, OTHER, THIRD] * 2


def test_switch_is_charged_to_the_client_that_caused_it(story: Models) -> None:
    story.loads = False
    story.ask("r-1", OTHER, "ann")
    story.wait_for(lambda: not story.ready)
    story.wait(4.0)
    for rank in range(2):
        story.node(rank, story.epoch).ready()
    story.wait_for_model(OTHER)
    assert story.master.requests._scheduler.served("ann") >= 400


@pytest.mark.fault("P24", "its requests fail and say why; the answer of another model goes on")
def test_model_that_cannot_be_planned_fails_its_requests_alone(story: Models) -> None:
    story.refused = "it needs more memory"
    first, other = story.ask("r-1", ONE), story.ask("r-2", OTHER)
    story.wait(1.0)
    assert str(failure(other)) == "other cannot be served: it needs more memory"
    assert story.served == ONE
    story.finish("r-1")
    assert isinstance(outcome(first), list)
    assert story.master.events[0].kind == "plan failed"


@pytest.mark.fault("P24", "a worker cannot prepare its part: the same")
def test_failed_preparation_returns_to_the_previous_model(story: Models) -> None:
    agent = story.agents["w-1"]
    agent.prepares = False
    first, other = story.ask("r-1", ONE), story.ask("r-2", OTHER)
    story.wait(1.0)
    agent.failed()
    story.wait(1.0)
    assert "the disk is full" in str(failure(other))
    assert story.served == ONE
    agent.prepares = True
    story.finish("r-1")
    assert isinstance(outcome(first), list)


@pytest.mark.fault("P24", "its nodes do not start: the previous model serves again")
def test_failed_start_returns_to_the_previous_model(story: Models) -> None:
    story.loads = False
    other = story.ask("r-2", OTHER)
    story.wait_for(lambda: not story.ready)
    story.loads = True
    story.node(1, story.epoch).fail("ReadFault", "the disk is broken")
    story.wait_for_model(ONE)
    assert isinstance(failure(other), TpiedgeError)


@pytest.mark.fault("P23", "a machine that is lost leads to another plan for the same model")
def test_lost_machine_does_not_return_to_the_previous_model(story: Models) -> None:
    other = story.ask("r-2", OTHER)
    story.wait_for_model(OTHER)
    story.freeze()
    story.wait_for(lambda: story.members() == ("master",) and story.ready)
    assert story.served == OTHER
    story.finish("r-2")
    assert isinstance(outcome(other), list)


def test_chosen_model_serves_once_no_request_waits(story: Models) -> None:
    first = story.ask("r-1", ONE)
    story.master.choose_model(OTHER)
    story.wait(60.0)
    status = story.master.status
    assert (story.served, status.next_pack, status.reason) == (ONE, OTHER, "other is next")
    story.finish("r-1")
    assert isinstance(outcome(first), list)
    story.wait_for_model(OTHER)
    assert story.master.status.next_pack == ""


def test_request_of_the_served_model_withdraws_the_cancelled_other(story: Models) -> None:
    story.agents["w-1"].prepares = False
    other = story.ask("r-2", OTHER)
    story.wait(1.0)
    other.cancel()
    first = story.ask("r-1", ONE)
    story.wait(1.0)
    assert (story.worker().state, story.served) == ("ready", ONE)
    story.finish("r-1")
    assert isinstance(outcome(first), list)


def test_weights_leave_memory_after_idle_time_and_return(story: Models) -> None:
    story.master.keep_weights(30.0)
    story.wait(20.0)
    assert story.ready
    story.wait(20.0)
    status = story.master.status
    assert (status.ready, status.asleep, story.rank_zero.epoch) == (False, True, None)
    assert status.reason == "the next request loads the weights into memory"
    assert story.agents["w-1"].released
    story.loads = False
    other = story.ask("r-1", OTHER)
    story.wait(1.0)
    assert paused(other) == "loading the weights"
    for rank in range(2):
        story.node(rank, story.epoch).ready()
    story.wait_for_model(OTHER)
    assert not story.master.status.asleep
    story.finish("r-1")
    assert isinstance(outcome(other), list)


def test_model_that_was_loaded_by_request_leaves_memory_as_well() -> None:
    """A cluster of one model, for which nothing is next."""
    story = Story()
    two_machines(story)
    story.master.keep_weights(10.0)
    story.master.choose_model(ONE)
    story.wait(5.0)
    assert (story.ready, story.master.status.next_pack) == (True, "")
    story.wait_for(lambda: story.master.status.asleep)


def test_weights_that_are_not_kept_stay_until_the_answer_ends(story: Models) -> None:
    story.master.keep_weights(0.0)
    story.wait_for(lambda: story.master.status.asleep)
    answering = story.ask("r-1", ONE)
    story.wait_for_model(ONE)
    story.wait(5.0)
    story.finish("r-1")
    assert isinstance(outcome(answering), list)
    story.wait_for(lambda: story.master.status.asleep)


def test_request_without_a_model_takes_the_served_one(story: Models) -> None:
    story.ask("r-1", OTHER)
    story.wait_for_model(OTHER)
    story.finish("r-1")
    story.ask("r-2", "")
    assert (story.served, story.root.asked) == (OTHER, ["r-1", "r-2"])


@pytest.mark.fault("P24", "requests of another model are accepted and answered")
def test_hopeless_model_does_not_refuse_requests_of_another(story: Models) -> None:
    story.ask("r-1", OTHER)
    story.wait_for_model(OTHER)
    story.finish("r-1")
    story.refused = "it needs w-1"
    story.freeze()
    story.wait_for(lambda: not story.ready)
    story.wait(130.0)
    with pytest.raises(TpiedgeError, match="serves nothing now"):
        story.master.submit(replace(request("r-2"), pack=OTHER))
    first = story.ask("r-3", ONE)
    story.wait_for_model(ONE)
    story.finish("r-3")
    assert isinstance(outcome(first), list)


def test_readers_of_another_model_hear_once_which_is_served(story: Models) -> None:
    story.ask("r-1", ONE)
    other = story.ask("r-2", OTHER)
    story.wait(5.0)
    assert read(other) == [Paused("one is served first")]
