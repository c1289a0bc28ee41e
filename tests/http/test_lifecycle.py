import contextlib
import itertools
import json
import logging
import re
import socket
import threading
import time

import httpx
import pytest

from tests.http.conftest import wait_until
from tpiedge.api import errors
from tpiedge.api.limits import Limits
from tpiedge.sanitise import RateLimitedLog

LIMIT_S = 20.0
BODY = {"model": "babbler", "prompt": "x", "stream": True}


def test_health_and_ready_report_the_cluster_state(serve, service):
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


def stream(server, **more):
    return httpx.stream("POST", f"{server.url}/v1/completions", json=BODY | more)


def events_of(answer):
    return [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]


def test_a_waiting_client_is_pinged(serve, service):
    server = serve(limits=Limits(ping_s=0.05))
    with stream(server) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": ping"
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(5)
        generation.finish()
        rest = [line for line in lines if line.startswith("data")]
        assert rest[-1] == "data: [DONE]"


def test_stream_reports_a_pause_and_usage_counts_it(serve, service):
    server = serve(limits=Limits(ping_s=0.05))
    more = {"stream_options": {"include_usage": True}}
    with stream(server, **more) as answer:
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


def broken_stream(server, then, count=1):
    """The last event of a stream whose body ends unfinished. After its first `count` events, `then` is called."""
    events = []

    def read(answer):
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(line.removeprefix("data: "))
                if len(events) == count:
                    then()

    with stream(server) as answer, pytest.raises(httpx.RemoteProtocolError):
        read(answer)
    assert "[DONE]" not in events
    return json.loads(events[-1])


def test_a_deadline_in_the_middle_breaks_the_stream(serve, service):
    speak(service)
    last = broken_stream(serve(limits=Limits(answer_s=1.0)), lambda: None)
    assert last["error"]["code"] == "deadline_exceeded"
    assert last["tokens"] == 1
    assert last["id"].startswith("cmpl-")


def test_closing_lets_answers_finish(serve, service):
    server = serve()
    speak(service)
    with stream(server) as answer:
        closing = threading.Thread(target=server.close, args=(LIMIT_S,))
        closing.start()
        generation = service.generations.get(timeout=LIMIT_S)
        wait_until_closed(server)
        generation.finish()
        assert events_of(answer)[-1] == "[DONE]"
        closing.join(LIMIT_S)
    assert not generation.cancelled.is_set() or generation.ended.is_set()


def wait_until_closed(server):
    """Waits until the server accepts no connection any more."""
    deadline = time.monotonic() + LIMIT_S
    with contextlib.suppress(httpx.TransportError):
        while time.monotonic() < deadline:
            httpx.get(f"{server.url}/health")


def test_closing_the_server_cancels_unfinished_answers(serve, service):
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


@pytest.mark.fault("H1", "a server that ends does not wait for them")
def test_closing_does_not_wait_for_idle_or_silent_connections(serve):
    server = serve()
    with httpx.Client(base_url=server.url) as http:
        http.get("/health")
        started = time.monotonic()
        server.close(LIMIT_S)
        assert time.monotonic() - started < LIMIT_S / 2


@pytest.mark.fault("H7", "dropped; others are served")
def test_a_client_that_does_not_read_is_dropped(serve, service):
    """The service gives events until its own timeout; the server keeps only a few of them."""
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
        state = server._http._server.server_state
        wait_until(lambda: state.total_requests)
        wait_until(lambda: not state.connections)


@pytest.mark.fault("H12", "neither is logged")
def test_logs_contain_neither_prompt_nor_key(serve, service, caplog, capfd):
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


def test_internal_error_is_logged_with_location_but_no_message(serve, service, caplog, monkeypatch):
    def fail(_request, **_more):
        raise LookupError("my private prompt")

    monkeypatch.setattr(service, "submit", fail)
    # Other tests of this minute may have used up its lines.
    monkeypatch.setattr(errors, "_log", RateLimitedLog(logging.getLogger("tpiedge.api.errors")))
    answer = httpx.post(f"{serve().url}/v1/completions", json={"model": "babbler", "prompt": "x"})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "a defect of tpiedge: LookupError"
    (line,) = [record.getMessage() for record in caplog.records if "defect" in record.getMessage()]
    assert re.fullmatch(r"a defect of tpiedge: LookupError at test_lifecycle\.py:\d+: a request failed", line)
    assert "private" not in caplog.text
