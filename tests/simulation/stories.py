"""Stories: lists of events, drawn from a seed, played, and shortened where they break a law."""

import contextlib
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.simulation.cluster import Cluster, LawBroken, Setup

Event = tuple[str | int | bool, ...]
"""The name of a method of Cluster and its arguments."""

#: How often each event is drawn, beside the others.
_WEIGHTS = {
    "ask": 30,
    "wait": 40,
    "turn": 8,
    "join": 12,
    "leave": 2,
    "vanish": 3,
    "freeze_machine": 3,
    "thaw": 6,
    "freeze_node": 2,
    "freeze_agent": 2,
    "hang": 1,
    "crash": 4,
    "restart_agent": 2,
    "break_link": 2,
    "break_protocol": 2,
    "echo_of_the_past": 3,
    "revoke": 1,
    "drain": 3,
    "undrain": 2,
    "clear": 2,
    "limit": 3,
    "trouble": 2,
    "slow_disk": 2,
    "slow_loading": 1,
    "slow_steps": 1,
    "refuse_processes": 1,
    "cancel": 5,
    "go_away": 3,
    "come_back": 3,
    "observe": 1,
    "kill_master": 2,
    "choose": 3,
    "keep": 2,
    "unplan": 2,
    "unload": 2,
    "forget_pack": 1,
}


@dataclass(frozen=True)
class Failure:
    law: str
    words: str


def drawn(seed: int, events: int = 60) -> tuple[Setup, list[Event]]:
    chance = random.Random(seed)
    workers = chance.randint(1, 4)
    setup = Setup(workers, min(workers, chance.choice((0, 0, 0, 1, 2))), chance.choice((1, 2, 4)))
    setup = replace(setup, models=chance.choice((1, 2, 2, 3)))
    names, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    begin: list[Event] = [("join", worker) for worker in range(1, setup.workers + 1)]
    return setup, [
        *begin[: chance.randint(0, setup.workers)],
        ("wait", 2),
        *(_event(name, chance, setup) for name in chance.choices(names, weights, k=events)),
    ]


def _event(name: str, chance: random.Random, setup: Setup) -> Event:
    worker = chance.randint(1, setup.workers)
    match name:
        case "ask":
            kind = chance.choice(("", "", "", "", "scores", "vector", "grammar", "grammar", "poison"))
            if kind == "poison" and chance.random() < 0.7:
                kind = ""
            model = chance.randint(0, 2)
            return name, chance.randint(2, 6), chance.randint(1, 12), kind, chance.random() < 0.8, model
        case "wait":
            return name, chance.choice((0.1, 0.3, 0.5, 1, 2, 2, 5, 5, 20))
        case "turn":
            return name, chance.randint(1, 3)
        case "hang" | "crash":
            return name, chance.randint(0, setup.workers)
        case "limit":
            return name, chance.randint(0, setup.workers), chance.choice((0, 1, 512, 1024))
        case "trouble":
            return name, worker, chance.choice(("", "the disk is full"))
        case "slow_disk":
            return name, worker, chance.choice((0, 1, 4, 60))
        case "slow_steps":
            return name, chance.choice((1, 3))
        case "slow_loading":
            return name, chance.choice((0, 1, 5))
        case "choose" | "unplan" | "unload":
            return name, chance.randint(0, 2), chance.random() < 0.5
        case "keep":
            return name, chance.choice((0, 1, 5, 30))
        case "forget_pack":
            return name, worker, chance.randint(0, 2)
        case "refuse_processes":
            return name, chance.random() < 0.5
        case "cancel" | "go_away" | "come_back":
            return name, chance.randint(0, 5)
        case "kill_master":
            return name, chance.randint(0, 3)
        case "observe" | "echo_of_the_past":
            return (name,)
    return name, worker


def play(setup: Setup, *events: Event) -> Cluster:
    cluster = Cluster(setup)
    try:
        for name, *arguments in events:
            getattr(cluster, str(name))(*arguments)
            cluster.look()
            cluster.count += 1
        cluster.finish()
    finally:
        cluster.end()
    return cluster


def begun(*events: Event, setup: Setup | None = None) -> Cluster:
    cluster = Cluster(setup or Setup())
    for name, *arguments in events:
        getattr(cluster, str(name))(*arguments)
        cluster.look()
    return cluster


def failure_of(setup: Setup, events: Sequence[Event]) -> Failure | None:
    with _silence():
        try:
            play(setup, *events)
        except LawBroken as error:
            return Failure(error.law, str(error))
        except Exception as error:
            return Failure(type(error).__name__, f"{type(error).__name__}: {error}")
    return None


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def shortest(setup: Setup, events: Sequence[Event], law: str) -> list[Event]:
    """The story without all events that it does not need to break the same law."""
    story = list(events)
    size = max(1, len(story) // 2)
    while True:
        place, shorter = 0, False
        while place < len(story):
            without = story[:place] + story[place + size :]
            found = failure_of(setup, without)
            if found is not None and found.law == law:
                story, shorter = without, True
            else:
                place += size
        if size == 1 and not shorter:
            return story
        size = max(1, size // 2)


def as_test(setup: Setup, events: Sequence[Event], failure: Failure) -> str:
    lines = "".join(f"        {event!r},\n" for event in events)
    return f"def test_story() -> None:\n    # {failure.words}\n    play(\n        {setup!r},\n{lines}    )\n"


def check(seed: int, events: int = 60) -> None:
    setup, story = drawn(seed, events)
    failure = failure_of(setup, story)
    if failure is not None:
        short = shortest(setup, story, failure.law)
        last = failure_of(setup, short) or failure
        raise AssertionError(f"seed {seed}:\n\n{as_test(setup, short, last)}")
