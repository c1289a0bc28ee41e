import asyncio
import contextlib
import json
import socket
import threading
import time
from dataclasses import replace

import httpx
import pytest

from tests.fakes.clock import ManualClock
from tests.fakes.service import token
from tests.http.conftest import DEMO, PACK, SECRET, leave_early, wait_until
from tests.http.kept import KeptAnswers
from tpiedge.answers.log import COLLECTED_WITHIN_S, LEFT_S, UNFINISHED_S, AnswerLog
from tpiedge.answers.record import FoundAnswer, event_line
from tpiedge.api.completions import ANSWER_FORMS
from tpiedge.api.limits import Limits
from tpiedge.api.parsed import Choice, Reply
from tpiedge.api.records import AcceptedRequest, RecordFolder, key_mark
from tpiedge.errors import MasterFailed, PeerLost
from tpiedge.master.journal import POISON_AFTER
from tpiedge.model.call_reader import ReadTool
from tpiedge.model.output import OutputForm
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest, Sampling

LIMIT_S = 20.0
BODY = {"model": "babbler", "prompt": "x"}
CREATED = int(time.time())
WORDS = tuple(Tokenizer.open(DEMO, here=True).encode("the fox", add_special=False)[:2])
CHAT = Reply("chat", True, True, None, (), False)
TEXT = Reply("completion", True, True, 2, (), True)
WHOLE = Reply("completion", False, False, None, (), False)
STOPPED = replace(CHAT, stops=(" three", "never"))
CALLING = replace(CHAT, speech=OutputForm("hermes", (ReadTool("f", ("a",)), ReadTool("g"))))
THINKING = replace(CALLING, speech=replace(CALLING.speech, thinking="marked"))
TWO_TEXTS = "one \N{GRINNING FACE}\N{SNOWMAN} two nev three four"
TWO_CALLS = 'x<tool_call>{"name": "f", "arguments": {"a": "\N{SNOWMAN}"}}</tool_call><tool_call>{"name":"g"}'

REASONED_CALLS = f"<think>two\n</think>{TWO_CALLS}"
#: What the last event of a stream has.
LAST = {
    "chat": "[DONE]",
    "completion": "[DONE]",
    "message": "message_stop",
    "response": "response.completed",
}


def connect(server, key=""):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=server.url, timeout=LIMIT_S, headers=headers, trust_env=False)


def events_of(answer):
    return events_in(answer.iter_lines())


def events_in(lines):
    number = None
    for line in lines:
        if line.startswith("id: "):
            number = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield number, line.removeprefix("data: ")


def left(folder):
    return list(folder.glob("*.answer"))


def accepted_as(request, reply, key=b"", created=CREATED):
    return AcceptedRequest(request.id, (Choice(request),), 1, reply, created, "babbler", PACK, key_mark(key))


class Left:
    def __init__(self, folder, service):
        self._folder = folder
        self._service = service

    def __call__(self, reply, ids, told, *, rest=True, key=b"", number=1):
        """Records an answer with the first `told` tokens of `ids`; with `rest` the cluster says the others and the
        end. Returns the path of the answer."""
        form = ANSWER_FORMS[reply.format]
        name = f"{form.prefix}-{number}"
        sampling = Sampling(logprobs=reply.logprobs or 0)
        request = GenerationRequest(name, (1, 2), 100, sampling, (2,), keep_prefix=True)
        accepted = accepted_as(request, reply, key)
        file = RecordFolder(self._folder, PACK).create(accepted)
        for index, one in enumerate(ids[:told]):
            scores = tuple((one + i, -0.5 - i) for i in range(sampling.logprobs))
            file.write(event_line(0, token(name, index, one, scores)))
        file.keep()

        def script(generation):
            if rest:
                generation.say(*ids[told:])
                generation.finish("stop")

        self._service.script = script
        return f"{form.path}/{name}"


@pytest.fixture
def leave(folder, service):
    return Left(folder, service)


@pytest.mark.fault("P7", "killed with --journal: whatever its client has read, a GET has the rest")
@pytest.mark.parametrize(
    ("reply", "text", "step"),
    [
        (CHAT, TWO_TEXTS, 1),
        (TEXT, TWO_TEXTS, 1),
        (STOPPED, TWO_TEXTS, 1),
        (CALLING, TWO_CALLS, 5),
        (replace(STOPPED, format="message"), TWO_TEXTS, 3),
        (replace(THINKING, format="message"), REASONED_CALLS, 7),
        (replace(STOPPED, format="response"), TWO_TEXTS, 3),
        (replace(THINKING, format="response"), REASONED_CALLS, 7),
    ],
    ids=["chat", "logprobs", "stops", "calls", "message", "blocks", "response", "items"],
)
def test_resumed_stream_equals_an_uninterrupted_one_at_every_event(
    service, folder, leave, monkeypatch, reply, text, step
):
    """The text has characters of several tokens, and the beginnings of stop strings."""
    monkeypatch.setattr(
        "tpiedge.api.answering._OPEN_S", LIMIT_S
    )  # a ping of Anthropic's API is an event, too
    ids = service.tokenizer.encode(text, add_special=False)

    def stream(told, after):
        path = leave(reply, ids, told)
        kept = KeptAnswers(RecordFolder(folder, PACK), service, 1.0)
        assert kept.recover_all() == 1
        api = kept.api(SECRET)
        body = asyncio.run(got(api, path, after))
        kept.find(path.rpartition("/")[2]).delete()
        api.close(LIMIT_S)
        assert not left(folder)
        return list(events_in(body.decode().splitlines()))

    undisturbed = stream(0, 0)
    assert [number for number, _ in undisturbed] == list(range(1, len(undisturbed) + 1))
    assert LAST[reply.format] in undisturbed[-1][1]
    for told in range(0, len(ids) + 1, step):
        for after in range(0, len(undisturbed), step):
            assert stream(told, after) == undisturbed[after:], (told, after)


async def got(api, path, after):
    body = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        body.append(message.get("body", b""))

    headers = [(b"host", b"localhost"), (b"last-event-id", b"%d" % after)]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "state": {}}
    await api(scope, receive, send)
    return b"".join(body)


def test_unrecorded_answer_is_resumable_while_the_server_runs(serve, service, monkeypatch):
    """A stream is resumed in its middle, within a short grace, and after its end. No header promises more."""
    server = serve()
    with connect(server) as http:
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            assert "x-resumable" not in answer.headers
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            generation = service.generations.get(timeout=LIMIT_S)
            generation.say(*WORDS)
            events = [next(events_of(answer))]
        wait_until(lambda: not generation.has_reader)
        for _ in range(2):
            with (
                connect(server) as other,
                other.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer,
            ):
                generation.finish()
                rest = list(events_of(answer))
            assert [number for number, _ in events + rest] == list(range(1, len(rest) + 2))
            assert rest[-1][1] == "[DONE]"
        assert not generation.cancelled.is_set()
        monkeypatch.setattr("tpiedge.answers.log.BRIEFLY_S", 0.1)
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            generation = service.generations.get(timeout=LIMIT_S)
        assert generation.cancelled.wait(LIMIT_S)
        wait_until(lambda: http.get(path).status_code == 404)


def test_answer_record_survives_a_master_failure(keep, service, folder):
    """The stream breaks off without a word, and the next master goes on."""
    body = BODY | {"stream": True}
    with connect(keep()) as http, http.stream("POST", "/v1/completions", json=body) as answer:
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(WORDS[0])
        events = events_of(answer)
        next(events)
        generation.fail(MasterFailed("the control thread failed"))
        with pytest.raises(httpx.RemoteProtocolError):
            list(events)
    (path,) = left(folder)
    assert path.read_bytes().count(b"\n") == 3


@pytest.mark.fault(
    "P8",
    "the client's connection is cut with --journal: the answer goes on for a minute, and a GET has the rest",
)
@pytest.mark.parametrize("stream", [True, False])
def test_client_with_a_broken_connection_can_resume(keep, service, folder, stream):
    """Meanwhile others come first."""
    with connect(keep()) as http:
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": stream}) as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            assert answer.headers["x-resumable"] == "yes"
            generation = service.generations.get(timeout=LIMIT_S)
            assert path.endswith(generation.request.id)
            assert generation.has_reader
        wait_until(lambda: not generation.has_reader)
        generation.say(*WORDS)
        with http.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
            wait_until(lambda: generation.has_reader)
            generation.finish()
            body = answer.read().decode()
        if stream:
            assert next(events_in(body.splitlines()))[0] == 2
        else:
            assert json.loads(body)["usage"]["completion_tokens"] == 2
        assert not generation.cancelled.is_set()
        assert http.delete(path).status_code == 200
        assert http.get(path).status_code == 404
        wait_until(lambda: not left(folder))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_it_knows_the_id_cancels(keep, service, folder, monkeypatch, stream):
    monkeypatch.setattr("tpiedge.api.answering._OPEN_S", LIMIT_S)
    assert leave_early(keep(), service, BODY | {"stream": stream}).cancelled.wait(LIMIT_S)
    wait_until(lambda: not left(folder))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_deleting_an_answer_cancels_its_generation(keep, serve, service, folder, chat, kept, count):
    """The generation is cancelled at once, and readers of the answer are told."""
    where, more = ("/v1/chat/completions", {}) if chat else ("/v1/completions", BODY)
    body = BODY | more | {"stream": True, "n": count}
    if chat:
        body = {
            "model": "babbler",
            "messages": [{"role": "user", "content": "x"}],
            "stream": True,
            "n": count,
        }
    server = (keep if kept else serve)(keys=["ann", "bob"])
    with connect(server, "ann") as http, connect(server, "bob") as other:
        with http.stream("POST", where, json=body) as answer:
            generation = service.generations.get(timeout=LIMIT_S)
            name = answer.headers["x-request-id"]
            assert other.delete(f"{where}/{name}").status_code == 404
            assert not generation.cancelled.is_set()
            deleted = http.delete(f"{where}/{name}")
            assert generation.cancelled.wait(LIMIT_S)
            assert "the answer was deleted by its client" in "".join(text for _, text in broken(answer))
        kind = "chat.completion" if chat else "text_completion"
        assert deleted.json() == {"id": name, "object": f"{kind}.deleted", "deleted": True}
        wait_until(lambda: not left(folder))
        assert http.delete(f"{where}/{name}").status_code == 404


def broken(answer):
    return broken_lines(answer.iter_lines())


def broken_lines(lines):
    with contextlib.suppress(httpx.RemoteProtocolError):
        yield from events_in(lines)


@pytest.mark.fault(
    "P7", "an answer that was sent to its end is not computed again, though its connection closed first"
)
@pytest.mark.fault("P8", "the client's connection is cut after the answer's end: a GET has it")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [True, False])
def test_fully_sent_answer_is_kept_and_not_recomputed(keep, service, folder, caplog, version, stream):
    service.script = lambda generation: (generation.say(*WORDS), generation.finish())
    body = json.dumps(BODY | {"stream": stream}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: "
    head += "application/json\r\nContent-Length: "
    server = keep()
    with socket.create_connection(server.address, LIMIT_S) as connection:
        connection.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        with connection.makefile("rb") as answer:
            assert (b"[DONE]" if stream else b"finish_reason") in answer.read()
    generation = service.generations.get(timeout=LIMIT_S)
    server.close()
    path = f"/v1/completions/{generation.request.id}"
    server = keep()
    assert server.recovered == 1
    with connect(server) as http:
        assert http.get(path).json()["usage"]["completion_tokens"] == len(WORDS)
    assert service.generations.empty()
    assert not caplog.records


def test_a_second_reader_takes_the_place_of_the_first(keep, service, folder):
    """The first connection may have broken without the server's knowing."""
    with (
        connect(keep(limits=Limits(ping_s=0.05))) as http,
        http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as first,
    ):
        path = f"/v1/completions/{first.headers['x-request-id']}"
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(WORDS[0])
        heard = events_of(first)
        assert next(heard)[0] == 1
        with http.stream("GET", path, headers={"Last-Event-ID": "1"}) as second:
            rest = []
            with contextlib.suppress(httpx.RemoteProtocolError):
                rest.extend(heard)
            assert json.loads(rest[-1][1])["error"]["code"] == "superseded"
            generation.say(WORDS[1])
            generation.finish()
            numbers = [number for number, _ in events_of(second)]
        assert numbers == list(range(2, 2 + len(numbers)))
        assert not generation.cancelled.is_set()


@pytest.mark.fault(
    "P7", "killed with --journal: who asks the next master comes before answers that nobody waits for"
)
def test_recovered_answer_has_no_reader_until_it_is_resumed(keep, service, leave):
    path = leave(CHAT, WORDS, 1, rest=False)
    with connect(keep(limits=Limits(ping_s=0.05))) as http:
        generation = service.generations.get(timeout=LIMIT_S)
        assert not generation.has_reader
        with http.stream("GET", path, headers={"Last-Event-ID": "0"}) as answer:
            heard = events_of(answer)
            next(heard)
            assert generation.has_reader
        wait_until(lambda: not generation.has_reader)
        assert not generation.cancelled.is_set()


def test_recovered_request_counts_towards_poison_only_if_resubmitted(service, folder, leave):
    """A request that was not resubmitted ended no master, so it is not set aside; readers hear nothing of it."""
    leave(CHAT, WORDS, 1, rest=False)
    for number in range(POISON_AFTER + 2):
        kept = KeptAnswers(RecordFolder(folder, PACK), service, 1.0)
        assert kept.recover_all() == (number < POISON_AFTER + 1)
        if number == POISON_AFTER + 1:
            return
        generation = service.generations.get(timeout=LIMIT_S)
        if number:
            generation.take_up()
            wait_until(lambda before=number: left(folder)[0].read_bytes().count(b"taken up") == before)
        kept.close(LIMIT_S)


def test_answer_resumed_on_a_full_disk_has_no_record(keep, service, folder, leave, monkeypatch):
    """An answer that ends masters would not be counted."""
    path = leave(WHOLE, WORDS, 1, rest=False)
    with connect(keep()) as http:
        generation = service.generations.get(timeout=LIMIT_S)
        with monkeypatch.context() as full:
            full.setattr("tpiedge.answers.record.RecordFile.write", lambda *_: False)
            generation.take_up()
            wait_until(lambda: not left(folder))
        generation.say(*WORDS[1:])
        generation.finish("stop")
        assert http.get(path).status_code == 200


def test_answer_ended_by_a_stop_string_is_not_recomputed(keep, service, leave):
    ids = service.tokenizer.encode("one two three four", add_special=False)
    path = leave(replace(WHOLE, stops=(" three",)), ids, len(ids))
    with connect(keep()) as http:
        assert http.get(path).json()["choices"][0]["text"] == "one two"
    assert service.generations.empty()


def test_failed_answer_returns_its_error_when_collected(keep, service, folder, leave):
    path = leave(WHOLE, WORDS, 1, rest=False)
    with connect(keep()) as http:
        service.generations.get(timeout=LIMIT_S).fail(PeerLost(1, "the work", "killed"))
        wait_until(lambda: not left(folder))
        answer = http.get(path)
    assert answer.status_code == 503
    assert "killed" in answer.json()["error"]["message"]


@pytest.mark.parametrize("reply", [CHAT, WHOLE])
@pytest.mark.parametrize("over", [True, False])
def test_unread_answer_times_out_after_its_limit(folder, service, reply, over):
    """An answer waits only without a reader; whole ones and collected ones wait longer than streams."""
    clock = ManualClock()
    accepted = accepted_as(GenerationRequest("r", (1,), 9), replace(reply, stops=("x",)), created=0)
    records = RecordFolder(folder, PACK)
    (stop,) = service.tokenizer.encode("x", add_special=False)[-1:]
    told = [(0, Token(0, "r", 0, stop, ()))] if over else []
    question = accepted.question(service.tokenizer)
    found = FoundAnswer(question, records.create(accepted), told)
    answer = AnswerLog.recovered(found, clock.now, 5.0)
    assert answer.lacking == ([] if over else [0])

    def waits(limit_s):
        clock.advance(limit_s)
        assert answer.waited_s is None
        clock.advance(1.0)
        assert answer.waited_s == limit_s
        reader = answer.read(collects=limit_s != LEFT_S)
        assert answer.waited_s is None
        return reader

    collected_s = COLLECTED_WITHIN_S if over else UNFINISHED_S
    reader = waits(5.0 if reply.stream else collected_s)
    assert answer.left_at is None
    reader.disconnect("lost")
    assert answer.left_at == clock.now()
    waits(collected_s).disconnect("lost")
    answer.read(collects=False).disconnect("lost")
    waits(LEFT_S).disconnect("for good")
    assert answer.ended
    records.close(LIMIT_S)
    assert not left(folder)


def test_answer_counts_as_sent_when_reader_leaves_at_last_event(folder, service):
    """The thread that appends the event goes on after the reader has left."""
    question = accepted_as(GenerationRequest("r", (1,), 9), CHAT).question(None)
    answer = AnswerLog(question, None, ManualClock().now)
    reader = answer.read()
    leaving = threading.Thread(target=reader.disconnect, args=("sent",))

    class Events(list):
        def append(self, event):
            super().append(event)
            leaving.start()
            leaving.join(0.2)

    answer.events = Events()
    generation = service.resume(question.requests[0], ())
    generation.finish("stop")
    answer.follow(({0: generation}, {}), service)
    for thread in (*answer.threads, leaving):
        thread.join(LIMIT_S)
    assert answer.sent
    assert not answer.ended


@pytest.mark.parametrize("stream", [True, False])
def test_answer_failed_by_shutdown_leaves_no_record(keep, service, folder, monkeypatch, stream):
    """The client was told of an error, so no later server computes the answer."""
    monkeypatch.setattr("tpiedge.api.answering._OPEN_S", LIMIT_S)
    server = keep()
    answers = []
    with connect(server) as http:
        body = BODY | {"stream": stream}
        asking = threading.Thread(target=lambda: answers.append(http.post("/v1/completions", json=body)))
        asking.start()
        generation = service.generations.get(timeout=LIMIT_S)
        server.close()
        asking.join(LIMIT_S)
    assert [one.status_code for one in answers] == [503]
    assert generation.cancelled.is_set()
    assert not left(folder)


def test_answer_is_given_only_to_its_own_key(keep, service, folder, leave):
    path = leave(CHAT, WORDS, 1, key=b"ann")
    server = keep(keys=["ann", "bob"])
    refusals = []
    for key, where, status in (
        ("", path, 401),
        ("bob", path, 404),
        ("ann", path.replace("/v1/chat/", "/v1/"), 404),
        ("ann", f"{path}0", 404),
        ("ann", path, 200),
        ("bob", path, 404),
        ("ann", path, 200),
    ):
        with connect(server, key) as http:
            answer = http.get(where)
        assert answer.status_code == status, (key, where)
        if status == 404:
            refusals.append(answer.text)
    assert len(set(refusals)) == 1


@pytest.mark.parametrize("given", ["", "-1", "x", "1.5", "\u00b2", "9" * 19])
def test_invalid_event_ids_are_refused(keep, leave, given):
    path = leave(CHAT, WORDS, 1)
    with connect(keep()) as http:
        answer = http.get(path, headers={"Last-Event-ID": given.encode()})
        assert answer.status_code == 400
        assert "Last-Event-ID" in answer.json()["error"]["message"]
        refused = http.get("/v1/responses/x", params={"stream": "true", "starting_after": given})
        assert "starting_after" in refused.json()["error"]["message"]
        assert http.head(path).status_code == 405
        assert http.get(path).status_code == 200


@pytest.mark.fault("P7", "asked to end with --journal: what it does not finish, the next master does")
@pytest.mark.parametrize("quick", [False, True])
def test_next_server_continues_answers_of_a_closed_one(keep, service, folder, quick):
    """A stream breaks off without an error, for the client to come again; `quick`: even where the cluster has time to
    say that it cancelled the answer."""
    server = keep(limits=Limits(ping_s=0.05))
    with (
        connect(server) as http,
        http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer,
    ):
        path = f"/v1/completions/{answer.headers['x-request-id']}"
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(WORDS[0])
        heard = events_of(answer)
        found = [next(heard)]
        threading.Thread(target=server.close).start()
        if quick:
            assert generation.cancelled.wait(LIMIT_S)
            generation.finish("cancel")
        with pytest.raises(httpx.RemoteProtocolError):
            found.extend(heard)
    assert "error" not in found[-1][1]
    server.close()
    (record,) = left(folder)
    assert record.read_bytes().endswith(b" %d\n" % WORDS[0])
    service.script = lambda generation: (generation.say(WORDS[1]), generation.finish())
    with connect(keep()) as http, http.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
        numbers = [number for number, _ in events_of(answer)]
    assert numbers == list(range(2, 2 + len(numbers)))
