"""The streaming client of a soak tells every answer that is not exact, and what kind it is."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tools.abusing.client import Heard, StreamingClient, ask, canonical, judge
from tools.abusing.target import Target
from tpiedge.host.addresses import Address

EVENTS = [
    b'data: {"id": "cmpl-%s", "created": %d, "choices": [{"text": " fox"}]}\n\n',
    b'data: {"id": "cmpl-%s", "created": %d, "choices": [{"text": " ran", "finish_reason": "length"}]}\n\n',
    b"data: [DONE]\n\n",
]


def stream(number: int = 1) -> bytes:
    return b"".join(event % (b"%x" % number, number) if b"%" in event else event for event in EVENTS)


REFERENCE = canonical(stream())
ERROR = b'data: {"error": {"message": "node 1 was lost", "code": "worker_lost"}}\n\n'
HALF = canonical(EVENTS[0] % (b"1", 1))


def refusal(code: str) -> bytes:
    return json.dumps({"error": {"message": "try again later", "code": code}}).encode()


def test_id_time_and_signs_of_life_are_no_difference() -> None:
    assert stream(2) != stream(3)
    body = b": ping\n" + stream(1) + b": node 1 was lost\n" + stream(2)[len(stream(1)) :]
    assert judge(Heard(200, body, True), canonical(stream(3))) == ("exact", "")


@pytest.mark.parametrize("at", range(0, len(REFERENCE), 7))
def test_a_byte_that_differs_is_wrong(at: int) -> None:
    body = bytearray(REFERENCE)
    body[at] ^= 0x40
    assert judge(Heard(200, bytes(body), True), REFERENCE)[0] == "wrong"


@pytest.mark.parametrize(
    ("heard", "kind", "words"),
    [
        (Heard(200, HALF, True), "wrong", "as if it were whole"),
        (Heard(200, HALF, False, cause="reset"), "wrong", "without a word: reset"),
        (Heard(200, REFERENCE + b"data: more\n\n", True), "wrong", "byte"),
        (Heard(200, HALF + ERROR, False), "broken off", "node 1 was lost"),
        (Heard(200, HALF + ERROR, True), "wrong", "as if it were whole"),
        (Heard(200, b"data: {}\n\n" + ERROR, False), "wrong", "byte 7 "),
        (Heard(429, refusal("queue_full"), True, "1"), "refused", "try again later"),
        (Heard(429, refusal("queue_full"), True), "wrong", "queue_full"),
        (Heard(503, refusal("worker_lost"), True, "5"), "broken off", "worker_lost"),
        (Heard(503, b"<html>", True, "5"), "wrong", "without words"),
        (Heard(500, refusal("internal_error"), True, "5"), "wrong", "internal_error"),
        (Heard(0, cause="refused"), "unreachable", "refused"),
    ],
)  # fmt: skip
def test_kinds_of_answers(heard: Heard, kind: str, words: str) -> None:
    judgement, found = judge(heard, REFERENCE)
    assert judgement == kind
    assert words in found


class Handler(BaseHTTPRequestHandler):
    """Streams the answer in two chunks; the server's `ends` says whether it ends as HTTP wants."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (stream()[:20], stream()[20:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if self.server.ends:  # type: ignore[attr-defined]
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.ends = True  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(server: ThreadingHTTPServer) -> Target:
    place = Address("127.0.0.1", server.server_port)
    return Target(place, place, "demo", "key", "", "", "")


def test_an_answer_is_read_to_its_end(target: Target) -> None:
    assert judge(ask(target, "greedy"), REFERENCE) == ("exact", "")


def test_an_answer_whose_end_is_missing_is_not_whole(server: ThreadingHTTPServer, target: Target) -> None:
    server.ends = False  # type: ignore[attr-defined]
    assert judge(ask(target, "greedy"), REFERENCE)[0] == "wrong"


def test_what_the_client_hears_is_counted_until_it_pauses(target: Target) -> None:
    client = StreamingClient(target, {"greedy": REFERENCE, "sampled": REFERENCE[:-1]})
    client.resume()
    heard: set[str] = set()
    deadline = threading.Event()
    for _ in range(500):
        heard |= {str(judgement) for judgement in client.take().judgements}
        if heard == {"exact", "wrong"} or deadline.wait(0.02):
            break
    client.pause()
    client.take()
    assert heard == {"exact", "wrong"}
    assert client.take().judgements.total() == 0
    client.close()
