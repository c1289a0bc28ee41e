from collections import Counter, deque

import pytest

from tpiedge.master.request_queue import QueueFull, RequestQueue
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

FLOOD, OTHER = "flood", "other"
LIMIT = 8


class Desk:
    def __init__(self, limit: int = LIMIT, parallel: int = 1) -> None:
        self.requests = RequestQueue(limit, parallel, lambda _name: None, lambda: None)
        self.running: deque[GenerationRequest] = deque()
        self.begun: list[str] = []
        self._number = 0

    def ask(self, client: str, prompt: int = 3) -> None:
        self._number += 1
        name = f"{client} {self._number}"
        self.requests.submit(GenerationRequest(name, (5,) * prompt, 1000), client)

    def start(self) -> None:
        while self.requests.start(self.running.append):
            self.begun.append(self.running[-1].id.partition(" ")[0])

    def end(self, tokens: int = 1) -> None:
        name = self.running.popleft().id
        for index in range(tokens):
            self.requests.handle(Token(1, name, index, 5, ()))
        self.requests.handle(Finished(1, name, "stop", 3, tokens, 0, tokens))
        self.start()


@pytest.mark.fault("H8", "who floods makes nobody else wait for more than the next free place")
def test_client_behind_a_flood_gets_the_next_free_place() -> None:
    desk = Desk(parallel=2)
    for _ in range(LIMIT):
        desk.ask(FLOOD)
    desk.start()
    desk.ask(OTHER)
    desk.end()
    assert desk.begun == [FLOOD, FLOOD, OTHER]
    desk.ask(OTHER)
    for _ in range(3):
        desk.end()
    assert desk.begun == [FLOOD, FLOOD, OTHER, FLOOD, OTHER, FLOOD]


def test_fairness_counts_prompt_and_answer_tokens() -> None:
    desk = Desk()
    for _ in range(4):
        desk.ask("long", prompt=30)
        desk.ask("short", prompt=9)
    desk.start()
    for _ in range(5):
        desk.end(tokens=1)
    assert desk.begun == ["long", *["short"] * 4, "long"]
    talks = Desk()
    for _ in range(4):
        talks.ask("long")
        talks.ask("short")
    talks.start()
    talks.end(tokens=20)
    for _ in range(4):
        talks.end(tokens=2)
    assert talks.begun == ["long", *["short"] * 4, "long"]


def test_idle_client_accumulates_no_credit() -> None:
    desk = Desk()
    desk.ask("away")
    for _ in range(LIMIT):
        desk.ask(FLOOD)
    desk.start()
    for _ in range(5):
        desk.end(tokens=9)
    for _ in range(4):
        desk.ask("away")
    desk.begun.clear()
    for _ in range(4):
        desk.end(tokens=9)
    assert Counter(desk.begun) == {"away": 2, FLOOD: 2}


@pytest.mark.fault("H8", "who floods leaves places in the queue for others, and is refused")
def test_flood_leaves_queue_places_for_other_clients() -> None:
    desk = Desk(limit=4)
    for _ in range(4):
        desk.ask(FLOOD)
    with pytest.raises(QueueFull, match="4 requests are waiting already, 4 of this client: try again later"):
        desk.ask(FLOOD)
    for _ in range(2):
        desk.ask(OTHER)
    with pytest.raises(QueueFull, match="6 requests are waiting already, 2 of this client"):
        desk.ask(OTHER)
    desk.ask("third")
    desk.ask("fourth")
    with pytest.raises(QueueFull, match="8 requests are waiting already, 0 of this client"):
        desk.ask("fifth")
