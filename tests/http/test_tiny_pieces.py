"""Requests of very many tiny parts, or of more than one iteration should parse: no other client waits for them."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import httpx
import pytest

from tests.http.conftest import answers
from tests.http.test_guard import LIMIT_S, post, raw, status_of
from tpiedge.api.connection import PIECE_BYTES
from tpiedge.api.limits import Limits
from tpiedge.units import MIB

LAST_CHUNK = b"0\r\n\r\n"
TINY = b"1\r\n \r\n" * 10_000
BODY = b'{"model": "babbler", "prompt": "Once"}'


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def head_of(lines, *more):
    """A GET with a head of so many lines."""
    first = ["GET /health HTTP/1.1", "Host: localhost", "Connection: close", *more]
    return "\r\n".join([*first, *["a:"] * (lines - len(first))]).encode() + b"\r\n\r\n"


@pytest.mark.fault(
    "H2", "bodies in tiny chunks, heads and trailers of very many lines: others are answered meanwhile"
)
@pytest.mark.fault("H1", "tiny chunks and lines, from many at once: running streams and `/health` go on")
def test_running_streams_continue_beside_tiny_chunks(serve, service):
    server = serve()
    trailers = post(b"0\r\n" + b"a:\r\n" * 3000 + b"\r\n", "Transfer-Encoding: chunked")
    body = {"model": "babbler", "prompt": "Once", "stream": True}
    tiny = post(TINY + LAST_CHUNK, "Transfer-Encoding: chunked")
    word, over = service.tokenizer.encode("one", add_special=False), threading.Event()

    def attack(request):
        return {status_of(raw(server, request)) for _ in chain([False], iter(over.is_set, True))}

    with contextlib.ExitStack() as stack:
        stream = httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LIMIT_S)
        lines = stack.enter_context(stream).iter_lines()
        generation = service.generations.get(timeout=LIMIT_S)
        pool = stack.enter_context(ThreadPoolExecutor(12))
        stack.callback(over.set)
        found = pool.map(attack, [tiny, head_of(3200) * 4, trailers] * 4)
        for _ in range(4):
            assert httpx.get(f"{server.url}/health", timeout=LIMIT_S).status_code == 200
            generation.say(*word)
            assert any(line.startswith("data: {") for line in lines)
        generation.finish("stop")
        assert "data: [DONE]" in lines
        over.set()
        assert list(found) == [{400}, {200}, {400}] * 4


@pytest.mark.fault("H8", "on however many connections: one iteration parses one piece of a client")
def test_event_loop_parses_one_piece_at_a_time(serve, service, pieces):
    """However much has arrived; all of it is read in the end, through pauses and in order."""
    answers(service, "Hello")
    server = serve()
    body = BODY.ljust(MIB)
    sent = post(body, f"Content-Length: {len(body)}")
    with ThreadPoolExecutor(4) as pool:
        assert {status_of(answer) for answer in pool.map(raw, [server] * 4, [sent] * 4)} == {200}
    assert max(pieces) == PIECE_BYTES
    assert sum(pieces) == 4 * len(sent)


def test_pipelined_requests_are_all_answered_in_order(serve, pieces):
    """Answers keep the order of the requests, however many come at once."""
    one = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
    known = {b"/health": 200, b"/nothing": 404}
    paths = random.Random(1).choices(list(known), k=1000)
    found = raw(serve(), b"".join(one % path for path in paths) + head_of(4))
    statuses = [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [known[path] for path in paths] + [200]
    assert max(pieces) == PIECE_BYTES


def test_response_before_the_body_end_closes_the_connection(serve):
    server = serve(keys=["k"], limits=Limits(linger_s=0.2))
    for request in (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"more"),
    ):
        head, _, body = raw(server, request).partition(b"\r\n\r\n")
        assert status_of(head) == (401 if b"POST" in request else 200)
        assert head.lower().count(b"\r\nconnection: close") == 1
        assert body


def test_client_still_sending_reads_its_refusal(serve):
    server = serve(keys=["k"], limits=Limits(linger_s=LIMIT_S))
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as http:
        assert http.post("/v1/completions", content=b" " * (3 * MIB)).status_code == 401
    # One write: a body that comes after its head may find the refusal sent.
    whole = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    refusal, health = raw(server, whole + head_of(4)).split(b"HTTP/1.1 ")[1:]
    assert (refusal[:3], health[:3]) == (b"401", b"200")
    assert b"connection: close" not in refusal.lower()
