"""Answers that were sent to their ends, and not read: they wait for their clients."""

import gc
import json
import os
import socket
import tracemalloc
from dataclasses import replace

import httpx
import pytest

from tests.http.conftest import answers
from tests.http.kept import KeptAnswers
from tests.http.test_resuming import (
    BODY,
    CHAT,
    LAST,
    LIMIT_S,
    PACK,
    WHOLE,
    WORDS,
    connect,
    events_in,
    events_of,
    left,
    wait_until,
    wait_until_forgotten,
)
from tpiedge.answers.log import LEFT_S, Parting
from tpiedge.answers.record import event_bytes
from tpiedge.api.asked import Asked, Choice
from tpiedge.api.record_folder import RecordFolder
from tpiedge.errors import PeerLost
from tpiedge.testing.clock import ManualClock
from tpiedge.testing.service import FakeService, token
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

ASKED = [{"role": "user", "content": "hi"}]
TEXT = "Once upon a time there was a fox, one two three four five six seven eight nine ten"
READ = 4
FORMS = {
    "/v1/completions": BODY,
    "/v1/chat/completions": {
        "model": "babbler",
        "messages": ASKED,
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {"model": "babbler", "input": "hi"},
    "/v1/messages": {"model": "babbler", "messages": ASKED, "max_tokens": 99},
}
SEVERAL = {"/v1/completions": {"n": 3, "logprobs": 2}, "/v1/chat/completions": {"n": 3}}
CASES = [*FORMS.items(), *((path, FORMS[path] | more) for path, more in SEVERAL.items())]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


@pytest.fixture
def keep(serve, folder):
    return lambda **options: serve(records=RecordFolder(folder, PACK), **options)


def sent(server, path, form):
    """Waits until all of the answer was handed to the system."""

    def has_been():
        found = server._api._shelf.find(path.rpartition("/")[2])
        return found is not None and found.sent

    wait_until(has_been)


def form_of(path):
    return {
        "/v1/completions": "completion",
        "/v1/chat/completions": "chat",
        "/v1/responses": "response",
        "/v1/messages": "message",
    }[path]


@pytest.mark.fault(
    "P8", "the client's connection is cut after the answer's end, which it has not read: a GET has the rest"
)
@pytest.mark.parametrize("restart", [False, True], ids=["", "and the server begins anew"])
@pytest.mark.parametrize(
    ("path", "body"), CASES, ids=lambda case: case if isinstance(case, str) else f"n={case.get('n', 1)}"
)
def test_what_was_sent_and_not_read_is_resumed(keep, service, folder, path, body, restart):
    """Though the system had taken all of it."""
    answers(service, TEXT)
    server, found = keep(), []
    with connect(server) as http, http.stream("POST", path, json=body | {"stream": True}) as answer:
        where = f"{path}/{answer.headers['x-request-id']}"
        for event in events_of(answer):
            found.append(event)
            if len(found) == READ:
                sent(server, where, form_of(path))
                break
    if restart:
        server.close()
        server = keep()
    with connect(server) as http, connect(server) as other:
        for client, after in ((http, READ), (other, 0)):
            with client.stream("GET", where, headers={"Last-Event-ID": str(after)}) as answer:
                assert answer.headers["x-resumable"] == "yes"
                events = list(events_of(answer))
            found += events if after else []
        assert found == events
        assert [number for number, _ in found] == list(range(1, len(found) + 1))
        assert LAST[form_of(path)] in found[-1][1]
        said = "".join(text for _, text in found)
        assert said.count(" ten") >= body.get("n", 1)
        assert http.get(where).status_code == httpx.codes.OK, "the other one came later"
        assert http.get(where).status_code == httpx.codes.NOT_FOUND
    assert service.generations.qsize() == body.get("n", 1)


@pytest.mark.parametrize("path", FORMS)
def test_a_whole_answer_that_was_not_read_is_collected(keep, service, path):
    answers(service, TEXT)
    server = keep()
    body = json.dumps(
        {name: value for name, value in FORMS[path].items() if name != "stream_options"}
    ).encode()
    with socket.create_connection(server.address, LIMIT_S) as connection:
        connection.sendall(request_of(path, body))
        name = service.generations.get(timeout=LIMIT_S).request.id
        sent(server, f"{path}/{name}", form_of(path))
    with connect(server) as http:
        assert TEXT.split()[0] in http.get(f"{path}/{name}").text


def request_of(path, body, headers=""):
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
THROUGH = "x-forwarded-for: 192.0.2.7\r\n"


@pytest.mark.parametrize(
    ("asked", "next_one", "ends"),
    [
        ("", "", True),
        (THROUGH, "", False),
        ("", THROUGH, False),
        ("Forwarded: for=192.0.2.7\r\n", "Forwarded: for=192.0.2.7\r\n", False),
        ("Via: 1.1 squid\r\n", "Via: 1.1 squid\r\n", False),
    ],
)
def test_the_next_request_on_the_connection_shows_that_the_answer_was_read(
    keep, service, folder, asked, next_one, ends
):
    """But for that of a proxy, which has many clients."""
    answers(service, TEXT)
    server = keep()
    with socket.create_connection(server.address, LIMIT_S) as connection, connection.makefile("rb") as answer:
        connection.sendall(request_of("/v1/completions", json.dumps(BODY).encode(), asked))
        read_response(answer)
        assert len(left(folder)) == 1
        connection.sendall(GET_HEALTH.replace(b"\r\n\r\n", f"\r\n{next_one}\r\n".encode()))
        read_response(answer)
        if ends:
            wait_until(lambda: not left(folder))
        else:
            assert len(left(folder)) == 1
            server._api._shelf.sweep()
            assert len(left(folder)) == 1


def read_response(answer):
    """Its body."""
    length = 0
    while (line := answer.readline().lower()) not in (b"\r\n", b""):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    if length:
        return answer.read(length)
    body = b""
    while size := int(answer.readline(), 16):
        body += answer.read(size)
        answer.readline()
    answer.readline()
    return body


def test_an_empty_line_after_a_body_is_no_request(keep, service, folder):
    answers(service, TEXT)
    server = keep()
    with socket.create_connection(server.address, LIMIT_S) as connection, connection.makefile("rb") as answer:
        connection.sendall(request_of("/v1/completions", json.dumps(BODY).encode()) + b"\r\n")
        read_response(answer)
        connection.sendall(GET_HEALTH)
        read_response(answer)
        wait_until(lambda: not left(folder))


def test_a_request_that_came_before_the_answer_ended_shows_nothing(keep, service, folder):
    """As of a client that asks for several things at once, and reads later."""
    server = keep()
    body = json.dumps(BODY).encode()
    with socket.create_connection(server.address, LIMIT_S) as connection, connection.makefile("rb") as answer:
        connection.sendall(request_of("/v1/completions", body) + GET_HEALTH)
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(*WORDS)
        generation.finish()
        read_response(answer)
        assert b"ok" in read_response(answer)
        assert len(left(folder)) == 1
        connection.sendall(GET_HEALTH)
        read_response(answer)
        assert len(left(folder)) == 1, "it speaks for the one before it alone"


def test_only_the_same_client_shows_that_it_has_read(keep, service, folder):
    answers(service, TEXT)
    server = keep(keys=["ann", "bob"])
    with httpx.Client(base_url=server.url, timeout=LIMIT_S, trust_env=False) as http:

        def ask(key):
            return http.get("/v1/models", headers={"X-Api-Key": key}).status_code

        for key, ends in (("bob", False), ("ann", True)):
            before = set(left(folder))
            answer = http.post("/v1/completions", json=BODY, headers={"X-Api-Key": "ann"})
            assert answer.status_code == 200
            (record,) = set(left(folder)) - before
            assert ask(key) == 200
            if ends:
                wait_until(lambda record=record: not record.exists())
            else:
                assert record.exists()
        assert ask("ann") == 200
        assert len(left(folder)) == 1, "another one asked over this connection meanwhile"


def test_who_comes_again_is_not_forgotten_for_what_its_old_connection_asks(keep, service, folder):
    answers(service, TEXT)
    server = keep()
    with connect(server) as first, connect(server) as second:
        with first.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            answer.read()
        with second.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
            assert first.get("/health").status_code == 200
            assert next(events_in(answer.read().decode().splitlines()))[0] == 2
        assert len(left(folder)) == 1
        wait_until_forgotten(second, folder)


def test_what_an_answer_failed_by_waits_too(keep, service, folder):
    """In memory: nobody computes it again."""
    server = keep()
    with connect(server) as http:
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            generation = service.generations.get(timeout=LIMIT_S)
            generation.say(*WORDS)
            generation.fail(PeerLost(1, "the work", "killed"))
            sent(server, path, "completion")
        wait_until(lambda: not left(folder))
        for _ in range(2):
            with http.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
                assert "x-resumable" not in answer.headers, "no other server could go on with it"
                lines = []
                with pytest.raises(httpx.RemoteProtocolError):
                    lines.extend(answer.iter_lines())
            assert next(events_in(lines))[0] == 2
            assert "killed" in lines[-2]


# --- how many wait


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
    found.close()
    found.join(LIMIT_S)


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
        asked = Asked((Choice(request),), reply, ())
        reader = self.kept.ask(asked, request.id, client)
        generation = self._many.generations.get_nowait()
        generation.say(*[5] * tokens)
        if over:
            generation.finish()
        answer = self.kept.find(request.id)
        wait_until(lambda: answer.over if over else len(answer.events) == tokens)
        reader.leave(Parting.SENT if over else Parting.LOST)
        return request.id

    def kept_of(self, names):
        self.kept.sweep()
        return [name for name in names if self.kept.find(name) is not None]


@pytest.fixture
def clients(kept, many, clock):
    return Clients(kept, many, clock)


def bytes_of(clients, name):
    return clients.kept.find(name).held_bytes


@pytest.mark.fault("H8", "the answers that one client does not read push out none of another's")
def test_unread_answers_are_bounded_in_bytes_for_each_client(clients, monkeypatch):
    anns = clients.leave("ann", 100)
    monkeypatch.setattr("tpiedge.answers.shelf.LEFT_BYTES", 8 * bytes_of(clients, anns))
    bobs = [clients.leave("bob", 100) for _ in range(9)]
    assert clients.kept_of([anns, *bobs]) == [anns, *bobs[-4:]]


def test_unread_answers_are_bounded_in_bytes_in_all(clients, monkeypatch):
    """The oldest of the client that has most goes."""
    names = [clients.leave(client, 100) for client in ("ann", "bob", "bob", "bob", "cid", "cid")]
    monkeypatch.setattr("tpiedge.answers.shelf.LEFT_BYTES", 5 * bytes_of(clients, names[0]))
    assert clients.kept_of(names) == [names[0], *names[2:]]
    names.append(clients.leave("dan", 100))
    assert clients.kept_of(names) == [names[0], *names[3:]]


def test_what_was_sent_to_its_end_pushes_out_nothing_unfinished(clients, monkeypatch):
    monkeypatch.setattr("tpiedge.answers.shelf.MOST_LEFT", 1)
    unfinished = clients.leave("ann", over=False)
    sent = [clients.leave(client) for client in ("ann", "bob", "bob")]
    assert clients.kept_of([unfinished, *sent]) == [unfinished, *sent]


def test_an_unfinished_answer_counts_with_its_bytes(clients, monkeypatch):
    small, large = clients.leave("ann"), clients.leave("bob", 500, over=False)
    monkeypatch.setattr("tpiedge.answers.shelf.LEFT_BYTES", 2 * bytes_of(clients, large) - 2)
    assert clients.kept_of([small, large]) == [small]


def test_unread_answers_have_no_open_files(clients):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        clients.leave("ann")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)


@pytest.mark.parametrize("reply", [CHAT, replace(WHOLE, format="chat")])
def test_an_unread_answer_waits_for_a_minute(clients, clock, caplog, reply):
    name = clients.leave("ann", reply=reply)
    clock.advance(LEFT_S)
    assert clients.kept_of([name]) == [name]
    clock.advance(1.0)
    assert clients.kept_of([name]) == []
    assert not caplog.records


def test_the_next_server_goes_on_with_what_is_unfinished_first(folder, many, clients, monkeypatch):
    monkeypatch.setattr("tpiedge.answers.shelf.MOST_RECOVERED", 2)
    unfinished = clients.leave("ann", over=False)
    names = [unfinished, *(clients.leave("ann") for _ in range(2))]
    clients.kept.close()
    after = KeptAnswers(RecordFolder(folder, PACK), many, 1.0)
    assert after.recover_all() == 2
    found = [name for name in names if after.find(name) is not None]
    assert found == [unfinished, names[-1]]
    after.close()
    after.join(LIMIT_S)


def test_what_an_answer_takes_is_not_more_than_is_counted(tokenizer):
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
    return replace(
        CHAT,
        stops=tuple(f"{number}-{index}-" + 200 * "\U0001f43e" for index in range(64)),
        tools=tuple(f"{number}-tool-{index}" for index in range(128)),
        texts=tuple(tuple(f"{number}-{index}-{name}" for name in range(128)) for index in range(128)),
        echo=f"{number}" + 60_000 * "\U0001f43e",
    )


@pytest.mark.parametrize(
    ("choices", "reply"),
    [(128, lambda _: CHAT), (128, lambda _: replace(CHAT, stops=("no", "nil"))), (1, large)],
)
def test_what_a_request_holds_is_counted(kept, many, choices, reply):
    """Its grammar, tools, stop strings, and what is kept of each choice; another answer is as large."""

    def leave(number):
        bias = tuple((token, number + 0.5 * token) for token in range(1000))
        grammar = Grammar("regex", f"{number}" + 50_000 * "\U0001f43e")
        asked = [
            Choice(
                GenerationRequest(
                    f"chatcmpl-{number}{name}", (1,), 9, sampling=Sampling(logit_bias=bias), grammar=grammar
                )
            )
            for name in ("", *(f".{choice}" for choice in range(1, choices)))
        ]
        reader = kept.ask(Asked(tuple(asked), reply(number), ()), asked[0].request.id, "ann")
        for _ in range(choices):
            generation = many.generations.get(timeout=LIMIT_S)
            generation.say(5)
            generation.finish()
        answer = kept.find(asked[0].request.id)
        wait_until(lambda: answer.over)
        reader.leave(Parting.SENT)
        answer.join(LIMIT_S)
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
