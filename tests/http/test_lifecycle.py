"""Readiness, deadlines, slow readers, and the end of the server."""

import asyncio
import contextlib
import itertools
import json
import re
import signal
import socket
import threading
import time

import httpx
import openai
import pytest

from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.service import Reading
from tpiedge.errors import PeerLost

LIMIT_S = 20.0
BODY = {"model": "babbler", "prompt": "x", "stream": True}


def test_health_and_readiness(serve, service):
    with httpx.Client(base_url=serve().url) as http:
        assert http.get("/ready").json() == {"ready": True}
        service.unavailable = "too few nodes: 1 of 2"
        answer = http.get("/ready")
        assert answer.status_code == 503
        assert answer.json() == {
            "ready": False,
            "reason": "the cluster cannot answer yet: 'tpiedge nodes' on the master's computer says why",
        }
        assert http.get("/health").status_code == 200
        service.failed = "tpiedge-ship"
        answer = http.get("/ready")
        assert answer.status_code == 503
        assert answer.json() == {"ready": False, "reason": "the thread tpiedge-ship failed"}


def speak(service, times=1):
    """Every answer begins with a word, so many times, and does not end."""
    (word,) = service.tokenizer.encode("the", add_special=False)[:1]
    service.script = lambda generation: generation.say(*[word] * times)


def events_of(answer):
    return [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]


def test_a_waiting_client_is_pinged(serve, service):
    server = serve(limits=Limits(ping_s=0.05))
    with (
        httpx.Client(base_url=server.url) as http,
        http.stream("POST", "/v1/completions", json=BODY) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == ": ping"
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(5)
        generation.finish()
        rest = [line for line in lines if line.startswith("data")]
        assert rest[-1] == "data: [DONE]"


def test_a_pause_is_said_at_once_and_again_and_counted(serve, service):
    server = serve(limits=Limits(ping_s=0.05))
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with (
        httpx.Client(base_url=server.url) as http,
        http.stream("POST", "/v1/completions", json=BODY | more) as answer,
    ):
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(5)
        generation.pause("node 1 (dell-1) was lost\nduring the work")
        lines = answer.iter_lines()
        said = list(itertools.islice((line for line in lines if line.startswith(": n")), 3))
        assert set(said) == {": node 1 (dell-1) was lost during the work"}
        generation.resume(1.25)
        generation.say(5)
        generation.finish()
        rest = list(lines)
    usage = next(json.loads(line.removeprefix("data: ")) for line in rest if '"usage": {' in line)["usage"]
    assert usage["completion_tokens"] == 2
    assert usage["pauses"] == {"count": 1, "seconds": 1.25}


def test_openai_s_client_reads_on_after_a_pause_in_a_numbered_stream(serve, service):
    """The client takes an empty line for an event once it has heard a number."""
    server = serve(limits=Limits(ping_s=0.05))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        chunks = client.completions.create(**BODY)
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(*service.tokenizer.encode("the word", add_special=False))
        assert next(chunks).choices[0].text
        generation.pause("node 1 was lost")
        generation.resume(1.25)
        generation.say(5)
        generation.finish()
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] is not None


def test_a_whole_answer_that_pauses_keeps_its_status(serve, service):
    def break_off(generation):
        generation.say(5)
        generation.pause("node 1 was lost")
        generation.fail(PeerLost(1, "the work", "killed"))

    service.script = break_off
    answer = httpx.post(f"{serve().url}/v1/completions", json=BODY | {"stream": False})
    assert answer.status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_before_the_first_token_is_504(serve, service, stream):
    server = serve(limits=Limits(answer_s=0.1))
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY | {"stream": stream})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    assert service.generations.get(timeout=LIMIT_S).cancelled.wait(LIMIT_S)


def test_without_an_answer_limit_no_clock_runs(serve, service, monkeypatch):
    """As `tpiedge master` without --answer-limit."""
    started = []
    call_later = asyncio.BaseEventLoop.call_later
    monkeypatch.setattr(
        asyncio.BaseEventLoop,
        "call_later",
        lambda loop, delay, callback, *more, **options: (
            started.append(callback),
            call_later(loop, delay, callback, *more, **options),
        )[1],
    )
    service.script = lambda generation: generation.finish()
    assert Limits().answer_s is None
    assert httpx.post(f"{serve().url}/v1/completions", json=BODY).status_code == 200
    assert not [callback for callback in started if getattr(callback, "__name__", "") == "end"]
    httpx.post(f"{serve(limits=Limits(answer_s=60.0)).url}/v1/completions", json=BODY)
    assert [callback for callback in started if getattr(callback, "__name__", "") == "end"]


def broken_stream(server, then, count=1):
    """The last event of a stream whose body ends unfinished. After its first `count` events, `then` is called."""
    events = []

    def read(answer):
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(line.removeprefix("data: "))
                if len(events) == count:
                    then()

    with (
        httpx.Client(base_url=server.url) as http,
        http.stream("POST", "/v1/completions", json=BODY) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        read(answer)
    assert "[DONE]" not in events
    return json.loads(events[-1])


@pytest.fixture
def strike(monkeypatch):
    """Ends the time of all answers under way, which have a limit."""
    clocks = []
    call_later = asyncio.BaseEventLoop.call_later

    def noted(loop, delay, callback, *more, **options):
        if getattr(callback, "__name__", "") == "end":
            clocks.append(lambda: loop.call_soon_threadsafe(callback, *more))
        return call_later(loop, delay, callback, *more, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", noted)
    return lambda: [clock() for clock in clocks]


def test_a_deadline_in_the_middle_breaks_the_stream(serve, service, strike):
    speak(service, 3)
    last = broken_stream(serve(limits=Limits(answer_s=600)), strike, 3)
    assert last["error"]["code"] == "deadline_exceeded"
    assert last["tokens"] == 3
    assert last["id"].startswith("cmpl-")


def test_closing_lets_answers_finish(serve, service):
    server = serve()
    speak(service)
    with (
        httpx.Client(base_url=server.url) as http,
        http.stream("POST", "/v1/completions", json=BODY) as answer,
    ):
        closing = threading.Thread(target=server.close, args=(LIMIT_S,))
        closing.start()
        generation = service.generations.get(timeout=LIMIT_S)
        wait_until_closed(server)
        generation.finish()
        assert events_of(answer)[-1] == "[DONE]"
        closing.join(LIMIT_S)
    assert not generation.cancelled.is_set() or generation.ended.is_set()


def wait_until_closed(server):
    """Until it accepts no connection any more."""
    deadline = time.monotonic() + LIMIT_S
    with contextlib.suppress(httpx.TransportError):
        while time.monotonic() < deadline:
            httpx.get(f"{server.url}/health")


def test_closing_cancels_what_does_not_finish(serve, service):
    server = serve()
    speak(service)
    threads = []

    def close():
        threads.append(threading.Thread(target=server.close, args=(0.1,)))
        threads[0].start()

    last = broken_stream(server, close)
    assert last["error"]["code"] == "shutting_down"
    threads[0].join(LIMIT_S)
    assert not threads[0].is_alive()
    assert service.generations.get(timeout=LIMIT_S).ended.wait(LIMIT_S)


class Interrupted(Exception):
    """As a second SIGTERM."""


def test_closing_that_a_signal_interrupts_cancels_as_politely(serve, service):
    def interrupt(_signal, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR2, interrupt)
    server = serve()
    speak(service)

    def close():
        main = threading.main_thread().ident
        interrupting = threading.Thread(
            target=lambda: (wait_until_closed(server), signal.pthread_kill(main, signal.SIGUSR2))
        )
        interrupting.start()
        with pytest.raises(Interrupted):
            server.close(LIMIT_S)
        interrupting.join(LIMIT_S)
        server.close()

    try:
        last = broken_stream(server, close)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert last["error"]["code"] == "shutting_down"


@pytest.mark.fault("H1", "a server that ends does not wait for them")
def test_closing_does_not_wait_for_idle_or_silent_connections(serve):
    server = serve()
    with httpx.Client(base_url=server.url) as http:
        http.get("/health")
        started = time.monotonic()
        server.close(LIMIT_S)
        assert time.monotonic() - started < LIMIT_S / 2


def test_closing_before_starting_and_twice(service):
    from tests.http.conftest import SECRET
    from tpiedge.api.server import ApiServer

    server = ApiServer(service, "127.0.0.1", 0, ApiKeys(), SECRET)
    server.close()
    server.close()


@pytest.mark.fault("H7", "dropped; others are served")
def test_a_client_that_does_not_read_is_dropped(serve, service):
    """The service gives events until the end of its own patience; the server keeps only a few of them."""
    server = serve(limits=Limits(write_s=0.3))
    speak(service, 30_000)
    with socket.create_connection(server.address, timeout=LIMIT_S) as connection:
        body = json.dumps(BODY | {"max_tokens": 500}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head.encode() + body)
        generation = service.generations.get(timeout=LIMIT_S)
        service.script = lambda other: other.finish("stop")
        other = httpx.post(f"{server.url}/v1/completions", json=BODY | {"stream": False}, timeout=LIMIT_S)
        assert other.json()["choices"][0]["finish_reason"] == "stop"
        assert generation.cancelled.wait(LIMIT_S)


@pytest.mark.fault("H7", "dropped, whatever it asked for")
def test_a_client_that_does_not_read_many_small_answers_is_dropped(serve):
    server = serve(limits=Limits(write_s=0.3))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LIMIT_S)
        connection.connect(server.address)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        deadline = time.monotonic() + LIMIT_S
        while not (state := server._server.server_state).total_requests:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.fault("H12", "neither is logged")
def test_no_prompt_nor_key_in_what_is_logged(serve, service, caplog, capfd):
    service.script = lambda generation: generation.fail(ValueError("inside"))
    server = serve(keys=["sk-confidential"])
    httpx.post(
        f"{server.url}/v1/completions",
        json={"model": "babbler", "prompt": "my private prompt"},
        headers={"Authorization": "Bearer sk-confidential"},
    )
    server.close()
    written = "".join(capfd.readouterr()) + caplog.text
    assert "private" not in written
    assert "confidential" not in written


def test_a_defect_is_told_in_the_log_with_its_place_and_without_its_words(
    serve, service, caplog, monkeypatch
):
    def fail(_request, **_more):
        raise LookupError("my private prompt")

    monkeypatch.setattr(service, "submit", fail)
    answer = httpx.post(f"{serve().url}/v1/completions", json={"model": "babbler", "prompt": "x"})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "a defect of tpiedge: LookupError"
    (line,) = [record.getMessage() for record in caplog.records if "defect" in record.getMessage()]
    assert re.fullmatch(r"a defect of tpiedge: LookupError at test_lifecycle\.py:\d+: a request failed", line)
    assert "private" not in caplog.text


def test_how_far_a_long_prompt_is_read_is_said_in_a_stream_only(serve, service):
    def read(generation):
        generation.tell(Reading(300, 900, 0.0, None))
        generation.tell(Reading(600, 900, 150.0, 2.0))
        generation.say(5)
        generation.finish()

    service.script = read
    url = f"{serve().url}/v1/completions"
    streamed = httpx.post(url, json=BODY | {"stream": True}).text.splitlines()
    assert [line for line in streamed if line.startswith(":")] == [
        ": reading 300 of 900 tokens",
        ": reading 600 of 900 tokens, 2 s left",
    ]
    whole = httpx.post(url, json=BODY | {"stream": False})
    assert whole.json()["usage"]["completion_tokens"] == 1
