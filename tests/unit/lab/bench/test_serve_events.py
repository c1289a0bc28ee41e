import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.bench.serve_client import Arrival, read_answer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(words: str, ids: list[int] | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": words} | ({} if ids is None else {"token_ids": ids})]})


def usage(prompt: int, tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


@given(st.lists(st.integers(1, 400), max_size=12))
def test_how_the_bytes_are_cut_changes_nothing_but_times(cuts: list[int]) -> None:
    events = [text("a"), b": ping\n\n", text("b"), text("", [4, 5]), usage(11, 4), DONE]
    data = HEAD + b"".join(map(chunk, events)) + END
    bounds = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    pieces = [(float(end), data[start:end]) for start, end in itertools.pairwise(bounds)]
    found = read_answer(0.0, pieces, 999.0, 0)
    assert (len(found.token_s), found.prompt_tokens, found.error) == (4, 11, "")
    assert list(found.token_s) == sorted(found.token_s)


def test_an_answer_without_chunks() -> None:
    found = read_answer(0.0, [(1.0, PLAIN + text("a") + DONE)], 2.0, 8)
    assert (found.token_s, found.error) == ((1.0,), "")


def test_tokens_that_had_no_text_came_with_the_last_that_had() -> None:
    pieces = [(1.0, PLAIN + text("a")), (2.0, text("b") + text("")), (3.0, usage(8, 5) + DONE)]
    assert read_answer(0.0, pieces, 3.0, 8).token_s == (1.0, 2.0, 2.0, 2.0, 2.0)


def refusal(status: int, body: object) -> list[Arrival]:
    return [(1.0, b"HTTP/1.1 %d No\r\n\r\n" % status + json.dumps(body).encode())]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (refusal(429, {"error": {"message": "the queue\nis full"}}), "HTTP status 429: the queue is full"),
        (refusal(500, ["what"]), "HTTP status 500: no reason is given"),
        ([(1.0, PLAIN + text("a"))], "the server ended the answer early"),
        ([(1.0, PLAIN + event({"error": {"message": "a node was lost"}}))], "a node was lost"),
        ([(1.0, PLAIN + b"data: {\n\n")], "the server sent an event that is not JSON"),
        (
            [(1.0, HEAD + b"zz\r\nabc")],
            "the server does not speak HTTP as it should: illegal chunk header: bytearray(b'zz\\r\\n')",
        ),
        (
            [(1.0, b"SSH-2.0\r\n\r\n")],
            "the server does not speak HTTP as it should: illegal status line: bytearray(b'SSH-2.0')",
        ),
        ([(1.0, b"HTTP/1.1 200 OK\r\n")], "the server closed the connection without an answer"),
        ([], "the server closed the connection without an answer"),
    ],
)
def test_what_is_no_whole_answer_says_why(pieces: list[Arrival], words: str) -> None:
    assert read_answer(0.0, pieces, 2.0, 8).error == words
    assert read_answer(0.0, pieces, 2.0, 8, "no server answers").error == "no server answers"
