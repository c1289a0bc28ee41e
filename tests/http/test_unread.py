import gc
import os
import tracemalloc
from dataclasses import replace

import pytest

from tests.fakes.clock import ManualClock
from tests.fakes.service import FakeService, token
from tests.http.kept import KeptAnswers
from tests.http.test_resuming import (
    CHAT,
    LIMIT_S,
    PACK,
    STOPPED,
    wait_until,
)
from tpiedge.answers.record import event_bytes
from tpiedge.api.parsed import Choice, ParsedRequest
from tpiedge.api.records import RecordFolder
from tpiedge.model.call_reader import ReadTool
from tpiedge.model.output import OutputForm
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def many(service):
    return FakeService(service.tokenizer, places=100)


@pytest.fixture
def kept(folder, many, clock):
    found = KeptAnswers(RecordFolder(folder, PACK), many, 1.0, clock.now)
    yield found
    found.close(LIMIT_S)


class Clients:
    """Each answer is one second younger than the one before."""

    def __init__(self, kept, many, clock):
        self.kept, self._many, self._clock = kept, many, clock
        self._count = 0

    def leave(self, client, tokens=1, *, over=True, reply=CHAT):
        """The client's answer has so many tokens; returns its name."""
        self._clock.advance(1.0)
        self._count += 1
        request = GenerationRequest(f"chatcmpl-{self._count}", (1,), 9)
        parsed = ParsedRequest((Choice(request),), reply, ())
        reader = self.kept.ask(parsed, request.id, client)
        generation = self._many.generations.get_nowait()
        generation.say(*[5] * tokens)
        if over:
            generation.finish()
        answer = self.kept.find(request.id)
        wait_until(lambda: answer.over if over else len(answer.events) == tokens)
        reader.disconnect("sent" if over else "lost")
        return request.id

    def kept_of(self, names):
        self.kept.sweep()
        return [name for name in names if self.kept.find(name) is not None]


@pytest.fixture
def clients(kept, many, clock):
    return Clients(kept, many, clock)


def bytes_of(clients, name):
    return clients.kept.find(name).held_bytes


@pytest.mark.fault("H8", "the answers that one client leaves or does not read push out none of another's")
@pytest.mark.parametrize("over", [True, False])
def test_unread_answers_are_bounded_in_bytes_for_each_client(clients, monkeypatch, over):
    anns = clients.leave("ann", 100, over=over)
    monkeypatch.setattr("tpiedge.answers.shelf.LEFT_BYTES", 8 * bytes_of(clients, anns))
    bobs = [clients.leave("bob", 100, over=over) for _ in range(9)]
    assert clients.kept_of([anns, *bobs]) == [anns, *bobs[-4:]]


def test_unread_answers_have_no_open_files(clients):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        clients.leave("ann")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_finished_answers_keep_no_tokenizer_in_memory(folder, many, clients):
    """One of a model that is no longer served would stay for minutes."""
    told = [clients.leave("ann", over=over, reply=STOPPED) for over in (False, True)]
    assert [len(clients.kept.find(name).question.stops) for name in told] == [1, 0]
    clients.kept.close()
    after = KeptAnswers(RecordFolder(folder, PACK), many, 1.0)
    assert after.recover_all() == 2
    assert [len(after.find(name).question.stops) for name in told] == [1, 0]
    after.close(LIMIT_S)


def test_recovery_prefers_unfinished_answers(folder, many, clients, monkeypatch):
    monkeypatch.setattr("tpiedge.answers.shelf.MOST_RECOVERED", 2)
    unfinished = clients.leave("ann", over=False)
    names = [unfinished, *(clients.leave("ann") for _ in range(2))]
    clients.kept.close()
    after = KeptAnswers(RecordFolder(folder, PACK), many, 1.0)
    assert after.recover_all() == 2
    found = [name for name in names if after.find(name) is not None]
    assert found == [unfinished, names[-1]]
    after.close(LIMIT_S)


def test_counted_answer_bytes_cover_the_memory_used(tokenizer):
    for logprobs in (0, 20):
        gc.collect()
        tracemalloc.start()
        events = [
            (0, token(f"chatcmpl-{index:024d}", index, 5000 + index, pairs(index, logprobs)))
            for index in range(1000, 2000)
        ]
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        counted = sum(event_bytes(event) for _, event in events)
        assert taken <= counted < 2 * taken


def large(number):
    """All that a client may write."""
    names = [tuple(f"{number}-{index}-{name}" for name in range(128)) for index in range(128)]
    tools = tuple(ReadTool(f"{number}-tool-{index}", texts) for index, texts in enumerate(names))
    return replace(
        CHAT,
        stops=tuple(f"{number}-{index}-" + 200 * "\U0001f43e" for index in range(64)),
        speech=OutputForm("qwen-xml", tools),
        echo=f"{number}" + 60_000 * "\U0001f43e",
    )


@pytest.mark.parametrize(
    ("choices", "reply"),
    [(128, lambda _: CHAT), (128, lambda _: replace(CHAT, stops=("no", "nil"))), (1, large)],
)
def test_counted_request_bytes_cover_the_memory_used(kept, many, choices, reply):
    """Grammar, tools, stop strings and the state of each choice count; a second answer holds as much."""

    def leave(number):
        bias = tuple((token, number + 0.5 * token) for token in range(1000))
        grammar = Grammar("regex", f"{number}" + 50_000 * "\U0001f43e")
        request = GenerationRequest("", (1,), 9, sampling=Sampling(logit_bias=bias), grammar=grammar)
        name = f"chatcmpl-{number}"
        reader = kept.ask(ParsedRequest((Choice(request),), reply(number), (), choices), name, "ann")
        for _ in range(choices):
            generation = many.generations.get(timeout=LIMIT_S)
            generation.say(5)
            generation.finish()
        answer = kept.find(name)
        wait_until(lambda: answer.over)
        reader.disconnect("sent")
        for thread in answer.threads:
            thread.join(LIMIT_S)
        return answer.held_bytes

    leave(1)
    gc.collect()
    tracemalloc.start()
    held = leave(2)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= held < 4 * taken


def pairs(index, count):
    return tuple((7000 + index + n, -0.5 - index - n) for n in range(count))
