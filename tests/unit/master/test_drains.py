from concurrent.futures import Future

import pytest

from tests.unit.master.stories import Story, outcome, paused
from tpiedge.master.reconciler import CannotDrain
from tpiedge.wire.control import Finished, Shutdown
from tpiedge.wire.epochs import Leaving, Prepare, Spare


def refusal(ordered: Future[str]) -> str:
    error = ordered.exception(0.0)
    assert isinstance(error, CannotDrain)
    return str(error)


def told(story: Story, name: str = "w-1") -> list[str]:
    return [message.kind for message in story.agents[name].heard if isinstance(message, Spare)]


def drained(story: Story, name: str = "w-1") -> None:
    ordered, seen = story.master.drain_worker(name), list[str]()
    ordered.add_done_callback(lambda _: seen.append(story.worker(name).state))
    story.settle()
    assert ordered.result(0.0) == name
    assert seen[0] in ("draining", "drained"), "whoever hears of it may ask for the status at once"


def test_draining_worker_serves_until_the_next_plan_is_ready(trio: Story) -> None:
    running = trio.asked()
    before = trio.root
    before.token()
    trio.turn()
    trio.agents["w-2"].prepares = False
    drained(trio)
    assert (trio.worker().state, trio.worker().rank) == ("draining", 1)
    assert "in use until" in trio.worker().why
    before.token()
    trio.settle()
    assert before.count(Shutdown) == 0
    assert told(trio) == []

    trio.agents["w-2"].prepared()
    trio.settle()
    assert before.count(Shutdown) == 1
    assert trio.members() == ("master", "w-2")
    assert paused(running) == "switching to a new plan"
    found = trio.worker()
    assert (found.state, found.rank, found.spare) == ("drained", None, "drained")
    assert "tpiedge nodes drain w-1 --undo" in found.why
    assert told(trio) == ["drained"]
    assert trio.root.order().answer_ids == (5, 5)
    trio.root.token()
    trio.finish()
    events = outcome(running)
    assert isinstance(events, list)
    assert isinstance(events[-1], Finished)


def test_spare_drains_at_once_and_stays_out_of_later_plans(trio: Story) -> None:
    plan = trio.plan
    trio.plan = lambda machines: plan(machines[:2])
    trio.join("w-3")
    trio.settle()
    epoch = trio.epoch
    drained(trio, "w-3")
    assert (trio.epoch, trio.worker("w-3").state) == (epoch, "drained")
    assert told(trio, "w-3") == ["drained"]
    trio.agents["w-1"].say(Leaving(0))
    trio.agents["w-1"].offers = False
    trio.settle()
    assert trio.members() == ("master", "w-2")


def test_indispensable_worker_cannot_be_drained(trio: Story) -> None:
    trio.min_workers, epoch = 2, trio.epoch
    ordered = trio.master.drain_worker("w-1")
    trio.settle()
    assert refusal(ordered) == ("cannot drain pi: the others cannot serve without it: 1 of 2 workers here")
    assert (trio.epoch, trio.ready, trio.worker().state) == (epoch, True, "ready")
    assert all(agent.count(Prepare) == 1 for agent in trio.agents.values())


@pytest.mark.parametrize("name", ["w-1", "w-9"])
def test_draining_an_absent_worker_is_refused(trio: Story, name: str) -> None:
    trio.agents["w-1"].frozen = True
    trio.wait(3.0)
    ordered = trio.master.drain_worker(name)
    trio.turn()
    assert "is away" in refusal(ordered)
