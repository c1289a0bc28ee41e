import asyncio
import threading
from dataclasses import replace

import httpx
import pytest

from tests.fakes.service import FakeService, finished, token
from tests.http.conftest import SECRET
from tests.http.kept import KeptAnswers
from tests.http.test_resuming import (
    CHAT,
    CREATED,
    LIMIT_S,
    PACK,
    TEXT,
    connect,
    events_in,
    got,
    left,
    wait_until,
)
from tpiedge.answers.record import event_line
from tpiedge.api.limits import Limits
from tpiedge.api.parsed import Choice
from tpiedge.api.records import AcceptedRequest, RecordFolder
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.master.journal import Paused, Resumed
from tpiedge.wire.control import PromptScores
from tpiedge.wire.requests import GenerationRequest, Sampling

STOPPED = replace(CHAT, stops=(" three",))
ECHO = replace(TEXT, stops=(" three",), goes_on=True)
BODY = {"model": "babbler", "prompt": ["x", "y"]}


@pytest.fixture
def service(tokenizer):
    return FakeService(tokenizer, places=100, vocab_size=2048)


def accepted_of(service, reply, *, echo):
    """Two prompts with two choices each, or one with three."""
    sampling = Sampling(logprobs=reply.logprobs or 0, seed=5)
    texts = ("the fox", "a") if echo else ("the fox",)
    choices = []
    for number, text in enumerate(texts):
        ids = tuple(service.tokenizer.encode(text, add_special=True))
        echoed = EchoedPrompt.of(text, ids, service.tokenizer) if echo else None
        request = GenerationRequest("", ids, 100, sampling, (2,), prompt_scores=echo)
        choices.append(Choice(request, number, echoed))
    name = "chatcmpl-1" if reply.format == "chat" else "cmpl-1"
    return AcceptedRequest(name, tuple(choices), 2 if echo else 3, reply, CREATED, "babbler", PACK)


def events_of(service, accepted):
    """Returns the events of all choices, interleaved: the second ends by a stop string, the others by themselves."""
    each = []
    for number, choice in enumerate(accepted.choices):
        request = choice.request
        text = ("one \N{GRINNING FACE} two", "one two three four", "a \N{SNOWMAN}", "fox")[number]
        ids = service.tokenizer.encode(text, add_special=False)
        scores = [
            PromptScores(0, request.id, first, (-0.5,), ((first, -0.25), (9, -0.75)))
            for first in range(1, len(request.prompt_ids))
            if request.prompt_scores
        ]
        probabilities = tuple((7 + n, -0.5 - n) for n in range(request.sampling.logprobs))
        tokens = [token(request.id, index, one, probabilities) for index, one in enumerate(ids)]
        if number == 1:
            text, count = "", 0
            while " three" not in text:
                count += 1
                text = service.tokenizer.decode(ids[:count])
            each.append([*scores, *tokens[:count]])
        else:
            each.append([*scores, *tokens, finished(request, len(tokens), "stop", cached=1)])
    order = []
    for turn in range(max(map(len, each))):
        order += [(choice, events[turn]) for choice, events in enumerate(each) if turn < len(events)]
    return order


@pytest.mark.parametrize(("reply", "echo"), [(STOPPED, False), (ECHO, True)], ids=["chat", "echo"])
def test_resumed_choices_equal_uninterrupted_ones_at_every_event(service, folder, reply, echo):
    accepted = accepted_of(service, reply, echo=echo)
    events = events_of(service, accepted)
    path = f"/v1/{'chat/' if reply.format == 'chat' else ''}completions/{accepted.name}"

    def lines():
        return sum(one.read_bytes().count(b"\n") for one in left(folder))

    def stream(told, after):
        file = RecordFolder(folder, PACK).create(accepted)
        for choice, event in events[:told]:
            file.write(event_line(choice, event))
        file.keep()
        kept = KeptAnswers(RecordFolder(folder, PACK), service, LIMIT_S)
        assert kept.recover_all() == 1
        generations = {}
        while not service.generations.empty():
            generation = service.generations.get()
            generations[generation.request.id] = generation
        for choice, event in events[told:]:
            before = lines()
            generation = generations[accepted.choices[choice].request.id]
            generation.tell(Paused("a pause that is over"))
            generation.tell(Resumed(0.0))
            generation.tell(event)
            wait_until(lambda before=before: lines() > before)
        api = kept.api(SECRET)
        body = asyncio.run(got(api, path, after))
        kept.find(accepted.name).delete()
        api.close(LIMIT_S)
        assert not left(folder)
        return [
            (number, text)
            for number, text in events_in(body.decode().splitlines())
            if '"usage": {' not in text
        ]

    undisturbed = stream(0, 0)
    assert undisturbed[-1][1] == "[DONE]"
    assert sum('"finish_reason": "stop"' in text for _, text in undisturbed) == len(accepted.choices)
    for told in range(len(events) + 1):
        after = told * 5 % len(undisturbed)
        assert stream(told, after) == undisturbed[after:], (told, after)


def test_next_server_submits_choices_that_had_not_started(keep, service, folder):
    """Choices that ended before are not submitted again."""
    where = BODY | {"n": 10}
    first = keep(limits=Limits(ping_s=0.05))
    with connect(first) as http, http.stream("POST", "/v1/completions", json=where) as answer:
        path = f"/v1/completions/{answer.headers['x-request-id']}"
        begun = [service.generations.get(timeout=LIMIT_S) for _ in range(16)]
        for generation in begun[:2]:
            generation.say(5)
            generation.finish()
        begun[5].say(6)
        further = [service.generations.get(timeout=LIMIT_S).request.id for _ in range(2)]
        (record,) = left(folder)
        wait_until(lambda: record.read_bytes().count(b"\n") == 7)
        threading.Thread(target=first.close).start()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
    first.close()
    assert service.generations.empty()
    with connect(keep()) as http:
        resumed = [service.generations.get(timeout=LIMIT_S) for _ in range(16)]
        assert [one.request.id for one in resumed] == [*(one.request.id for one in begun[2:]), *further]
        assert [one.said for one in resumed] == [0, 0, 0, 1, *[0] * 12]
        assert not any(one.has_reader for one in resumed)
        (scope,) = {one.request.scope for one in (*begun, *resumed)}
        assert scope, "it is the same client's, and no other's"
        resumed[0].say(7)
        resumed[0].finish()
        last = service.generations.get(timeout=LIMIT_S)
        assert not last.has_reader, "nobody reads yet"
        for generation in resumed[1:]:
            generation.finish()
        last.finish()
        last = service.generations.get(timeout=LIMIT_S)
        last.finish()
        found = http.get(path).json()
    assert [choice["index"] for choice in found["choices"]] == list(range(20))
    assert found["usage"]["completion_tokens"] == 4


def test_a_full_queue_lets_further_choices_wait(keep, service, folder):
    service._places, service.retry_after_s = 2, 0.02
    service.script = lambda generation: (generation.say(5), generation.finish())
    with connect(keep()) as http:
        found = http.post("/v1/completions", json=BODY | {"n": 10}).json()
    assert [choice["index"] for choice in found["choices"]] == list(range(20))


def test_resubmission_is_recorded_once_for_all_choices(service, folder):
    accepted = accepted_of(service, CHAT, echo=False)
    RecordFolder(folder, PACK).create(accepted).keep()
    kept = KeptAnswers(RecordFolder(folder, PACK), service, LIMIT_S)
    assert kept.recover_all() == 1
    generations = [service.generations.get(timeout=LIMIT_S) for _ in accepted.choices]
    for generation in generations:
        generation.take_up()
        generation.say(5)
    (record,) = left(folder)
    wait_until(lambda: record.read_bytes().count(b"\n") == 6)
    assert record.read_bytes().count(b"taken up") == 1
    kept.close(LIMIT_S)
