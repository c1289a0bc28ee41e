from dataclasses import replace

import pytest

from tests.unit.master.stories import SERVED, Story, failure, outcome, paused, read, request, two_machines
from tpiedge.errors import TpiedgeError
from tpiedge.master.assignments import Assignments
from tpiedge.master.journal import Paused, PendingAnswer
from tpiedge.master.reconciler import RECOVERY_GRACE_S
from tpiedge.master.turns import TURN, Hosted
from tpiedge.wire.control import Compile
from tpiedge.wire.epochs import Prefetch, Spare
from tpiedge.wire.requests import Grammar

ONE, OTHER, THIRD = SERVED.pack_id, "pack-of-the-other", "pack-of-the-third"


class Models(Story):
    """A cluster that knows three models; the first one is served."""

    def __init__(self) -> None:
        super().__init__(replace(SERVED, name="one", sequences=2))
        self.refused = ""  # why no plan can be made for the other model
        for pack, name in ((OTHER, "other"), (THIRD, "third")):
            served = replace(SERVED, pack_id=pack, name=name, sequences=2)
            self.master.add_model(Hosted(served, self._planned_for_another))

    def _planned_for_another(self, machines, serving):
        if self.refused:
            return Assignments((), reason=self.refused)
        found = self._arranged(machines, serving)
        return replace(found, assignments=tuple(replace(one, weight_bytes=20) for one in found.assignments))

    def ask(self, name: str, pack: str, client: str = "", grammar: Grammar | None = None) -> PendingAnswer:
        answering = self.master.submit(replace(request(name), pack=pack, grammar=grammar), client)
        self.turn()
        return answering

    @property
    def served(self) -> str:
        return self.master.status.pack if self.master.status.ready else ""

    def wait_for_model(self, pack: str) -> None:
        self.wait_for(lambda: self.served == pack)


@pytest.fixture
def story() -> Models:
    story = Models()
    two_machines(story)
    return story


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
    asked = story.ask("r-1", OTHER, "ann")
    story.wait_for(lambda: not story.ready)
    story.wait(4.0)
    assert read(asked)[-1] == Paused("loading the weights")
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
    assert story.master.status.kept_s == pytest.approx(10.0, abs=2.0)
    story.wait(20.0)
    status = story.master.status
    assert (status.ready, status.asleep, story.rank_zero.epoch) == (False, True, None)
    assert status.reason == "the next request loads the weights into memory"
    agent = story.agents["w-1"]
    assert agent.released
    assert (agent.count(Spare), story.worker().why) == (1, status.reason)
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


def test_waiting_requests_do_not_interrupt_the_loading_of_another_model(story: Models) -> None:
    story.ask("r-1", ONE)
    story.ask("r-2", OTHER)
    story.loads = False
    story.wait_for(lambda: not story.ready)
    epoch = story.epoch
    story.wait(30.0)
    assert story.epoch == epoch
    for rank in range(2):
        story.node(rank, epoch).ready()
    story.turn()
    assert (story.served, story.root.asked) == (OTHER, ["r-2"])


def test_chosen_model_stays_next_if_another_one_fails(story: Models) -> None:
    first = story.ask("r-1", ONE)
    story.master.choose_model(THIRD)
    story.agents["w-1"].prepares = False
    story.ask("r-2", OTHER)
    story.wait(1.0)
    story.agents["w-1"].failed()
    story.agents["w-1"].prepares = True
    story.wait(1.0)
    assert story.master.status.next_pack == THIRD
    first.cancel()
    story.finish("r-1")
    story.wait_for_model(THIRD)


def test_grammar_that_was_compiled_before_the_rest_takes_no_place(story: Models) -> None:
    story.master.keep_weights(5.0)
    for _ in range(story.master.requests._compiling._places):
        story.ask("r-1", ONE, grammar=Grammar("regex", "a*")).cancel()
    story.wait_for(lambda: story.master.status.asleep)
    story.ask("r-2", ONE, grammar=Grammar("regex", "a*"))
    story.wait(2.0)
    assert story.root.count(Compile) == 1


def test_request_wakes_a_cluster_that_could_not_be_planned_anew(story: Models) -> None:
    story.plan = lambda _machines: "it needs more memory"
    story.master.clear_worker("w-1")
    story.wait(1.0)
    story.master.keep_weights(5.0)
    story.wait(RECOVERY_GRACE_S + 10.0)
    assert story.master.status.asleep
    story.plan = story._everyone
    answering = story.ask("r-1", ONE)
    story.wait_for_model(ONE)
    story.finish("r-1")
    assert isinstance(outcome(answering), list)


def test_request_wakes_a_cluster_whose_model_failed_to_start_often() -> None:
    story = Story()
    story.rank_zero.refusal = OSError("no process")
    story.master.keep_weights(0.0)
    story.wait(30.0)
    story.rank_zero.refusal = None
    story.wait_for(lambda: story.master.status.asleep)
    story.asked()
    story.wait_for(lambda: story.ready)


def test_worker_that_cannot_prepare_a_model_is_left_out_of_its_plan(story: Models) -> None:
    agent = story.agents["w-1"]
    agent.prepares = False
    story.ask("r-1", OTHER)
    agent.failed()
    story.turn()
    assert story.members() == ("master", "w-1")
    story.ask("r-2", OTHER)
    story.wait(1.0)
    assert (story.served, story.members()) == (OTHER, ("master",))


def test_drained_worker_does_not_wait_for_the_end_of_a_turn(story: Models) -> None:
    story.ask("r-1", ONE)
    story.ask("r-2", OTHER)
    story.master.drain_worker("w-1")
    story.wait(1.0)
    assert story.members() == ("master",)


def test_model_that_loads_is_not_given_up_for_want_of_another_plan(story: Models) -> None:
    story.loads = False
    story.ask("r-1", OTHER)
    story.wait_for(lambda: not story.ready)
    story.refused = "it needs more memory"
    story.master.clear_worker("w-1")
    story.wait(1.0)
    for rank in range(2):
        story.node(rank, story.epoch).ready()
    story.wait(1.0)
    assert (story.served, story.root.asked) == (OTHER, ["r-1"])


def test_answers_wait_for_a_lost_machine_while_another_model_goes_on(story: Models) -> None:
    """The other model needs both machines, and its answer has begun."""
    other = story.ask("r-1", OTHER)
    story.wait_for_model(OTHER)
    story.root.token("r-1")
    first = story.ask("r-2", ONE)
    story.wait_for_model(ONE)
    story.freeze()
    story.refused = "it needs w-1"
    story.wait_for(lambda: story.members() == ("master",) and story.ready)
    story.finish("r-2")
    assert isinstance(outcome(first), list)
    story.wait(60.0)
    assert (story.served, story.master.requests.waiting) == (ONE, 1)
    story.agents["w-1"].frozen, story.refused = False, ""
    story.wait_for_model(OTHER)
    story.finish("r-1")
    assert isinstance(outcome(other), list)


def test_answers_fail_once_a_lost_machine_is_away_for_the_grace(story: Models) -> None:
    story.refused = "it needs w-1"
    story.freeze()
    story.wait_for(lambda: story.members() == ("master",) and story.ready)
    other = story.ask("r-1", OTHER)
    story.wait(RECOVERY_GRACE_S - 10.0)
    assert story.master.requests.waiting == 1
    story.wait(15.0)
    assert str(failure(other)) == "other cannot be served: it needs w-1"
    assert story.served == ONE


def test_first_model_serves_after_another_one_failed_at_the_start() -> None:
    story = Models()
    story.refused = "it needs more memory"
    other = story.ask("r-1", OTHER)
    story.wait_for_model(ONE)
    assert str(failure(other)) == "other cannot be served: it needs more memory"


def test_losses_are_planned_for_the_model_that_serves_now(story: Models) -> None:
    story.wait(10.0)
    story.ask("r-1", OTHER)
    story.wait_for_model(OTHER)
    story.finish("r-1")
    story.wait(10.0)
    assert [one.pack for one in story.agents["w-1"].heard if isinstance(one, Prefetch)] == [ONE, OTHER]


def test_chosen_model_wakes_a_cluster_that_rests(story: Models) -> None:
    story.master.keep_weights(5.0)
    story.wait_for(lambda: story.master.status.asleep)
    story.master.choose_model(THIRD)
    story.wait_for_model(THIRD)
    assert story.master.status.next_pack == ""
    story.wait_for(lambda: story.master.status.asleep)


def test_poison_request_of_another_model_fails_alone(story: Models) -> None:
    first, other = story.ask("r-1", ONE), story.ask("r-2", OTHER)
    for _ in range(3):
        story.wait_for_model(OTHER)
        epoch, story.rank_zero.cause = story.epoch, "it was killed by signal 11"
        story.wait_for(lambda: story.epoch != epoch)  # noqa: B023
    assert isinstance(failure(other), TpiedgeError)
    story.wait_for_model(ONE)
    story.finish("r-1")
    assert isinstance(outcome(first), list)


def test_worker_that_joins_during_a_switch_takes_part(story: Models) -> None:
    story.loads = False
    story.ask("r-1", OTHER)
    story.wait_for(lambda: not story.ready)
    story.loads = True
    story.join("w-2")
    story.wait(3.0)
    assert (story.served, story.members()) == (OTHER, ("master", "w-1", "w-2"))
    assert story.root.asked == ["r-1"]


def test_pack_that_a_readerless_request_awaits_is_in_use(story: Models) -> None:
    story.ask("r-1", ONE)
    story.ask("r-2", THIRD).set_has_reader(False)
    story.ask("r-3", OTHER)
    assert story.master.models_in_use() >= {ONE, OTHER, THIRD}


def test_chosen_model_that_needs_a_lost_machine_is_given_up_visibly(story: Models) -> None:
    story.refused = "it needs w-1"
    story.freeze()
    story.wait_for(lambda: story.members() == ("master",) and story.ready)
    story.master.choose_model(OTHER)
    story.wait(1.0)
    assert (story.served, story.master.status.next_pack) == (ONE, "")
    assert story.master.events[0].kind == "plan failed"


def test_reader_hears_why_weights_cannot_be_loaded_again(story: Models) -> None:
    story.master.keep_weights(5.0)
    story.wait_for(lambda: story.master.status.asleep)
    story.plan = lambda _machines: "it needs more memory"
    answering = story.ask("r-1", ONE)
    story.wait(1.0)
    assert "it needs more memory" in str(read(answering)[-1])
