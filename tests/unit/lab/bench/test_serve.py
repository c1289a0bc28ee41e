import itertools
import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.lab.bench.serve_client import Arrival, read_answer
from tpiedge.lab.bench.serve_figures import (
    RoundFigures,
    TimedAnswer,
    distribution,
    gaps_within,
    percentile,
    rate_while_all_answer,
)
from tpiedge.lab.bench.serve_run import RandomPrompts, arrivals, parse_prompts

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
def test_network_fragmentation_changes_only_arrival_times(cuts: list[int]) -> None:
    events = [text("a"), b": ping\n\n", text("b"), text("", [4, 5]), usage(11, 4), DONE]
    data = HEAD + b"".join(map(chunk, events)) + END
    bounds = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    pieces = [(float(end), data[start:end]) for start, end in itertools.pairwise(bounds)]
    found = read_answer(0.0, pieces, 999.0, 0)
    assert (len(found.token_s), found.prompt_tokens, found.error) == (4, 11, "")
    assert list(found.token_s) == sorted(found.token_s)


def test_answer_without_chunked_encoding_is_read() -> None:
    found = read_answer(0.0, [(1.0, PLAIN + text("a") + DONE)], 2.0, 8)
    assert (found.token_s, found.error) == ((1.0,), "")


def test_tokens_without_text_are_timed_with_the_last_text() -> None:
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
def test_incomplete_answer_says_why(pieces: list[Arrival], words: str) -> None:
    assert read_answer(0.0, pieces, 2.0, 8).error == words
    assert read_answer(0.0, pieces, 2.0, 8, "no server answers").error == "no server answers"


def answer(sent_s: float, *token_s: float, ended_s: float | None = None, error: str = "") -> TimedAnswer:
    return TimedAnswer(sent_s, token_s, token_s[-1] if ended_s is None else ended_s, 8, error)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert [percentile([3.0], percent) for percent in (0, 50, 99)] == [3, 3, 3]
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2
    assert distribution([]) is None
    assert distribution([2.0, 1.0]) == {"p50": 1, "p90": 2, "p99": 2, "max": 2}


def test_token_gaps_overlapping_a_time_window_are_found() -> None:
    answers = [answer(0, 1, 2, 4, 8), answer(0, 5)]
    assert gaps_within(answers, 2, 4) == [2]
    assert gaps_within(answers, 3, 5) == [2, 4]
    assert gaps_within(answers, 8, 9) == []


def test_rate_while_all_answer_needs_every_client_decoding() -> None:
    # Both answer from 2 to 4 alone; in it there are four tokens, after those at 2.
    both = [answer(0, 1, 2, 3, 4), answer(0, 2, 3, 4, 5)]
    assert rate_while_all_answer(both, 2) == 2
    assert rate_while_all_answer(both, 1) == 1  # from 1 to 2 and from 4 to 5
    assert rate_while_all_answer(both, 3) is None
    assert rate_while_all_answer([], 1) is None
    one_after_the_other = [answer(0, 1, 2), answer(2, 3, 4)]
    assert rate_while_all_answer(one_after_the_other, 2) is None


def test_round_figures_are_computed_from_answers() -> None:
    answers = [answer(0, 1, 2, 3), answer(0, 1, 2, 3), answer(1, ended_s=4, error="broke")]
    found = RoundFigures.of(answers, 2)
    assert (found.requests, found.errors, found.error, found.seconds) == (3, 1, "broke", 4)
    assert (found.tokens_per_s, found.requests_per_s, found.answering_tokens_per_s) == (1.5, 0.5, 2)
    assert found.first_s == {"p50": 1, "p90": 1, "p99": 1, "max": 1}
    assert found.gap_s == found.first_s
    assert RoundFigures.of(answers, None).answering_tokens_per_s is None
    nothing = RoundFigures.of(answers[2:], 1)
    assert (nothing.first_s, nothing.gap_s, nothing.tokens_per_s) == (None, None, 0)
    assert nothing.answering_tokens_per_s is None


def test_random_prompts_share_only_the_requested_prefix() -> None:
    random = RandomPrompts(2000, shared=16, seed=1)
    prompts = [random.of(48) for _ in range(50)]
    assert {len(prompt) for prompt in prompts} == {48}
    assert {prompt[:16] for prompt in prompts} == {prompts[0][:16]}
    assert len({prompt[16:20] for prompt in prompts}) == 50
    assert all(3 <= token < 2000 for prompt in prompts for token in prompt)
    assert random.unlike(48)[:16] != prompts[0][:16]
    assert random.of(8) == prompts[0][:8]


def test_arrivals_are_a_poisson_process() -> None:
    times = list(itertools.islice(arrivals(4.0, 7), 20_000))
    waits = [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]
    assert min(waits) > 0
    assert statistics.fmean(waits) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(waits) == pytest.approx(0.25, rel=0.03)
    # Without memory: waiting as long again is as likely as waiting at all.
    long = [wait for wait in waits if wait > 0.25]
    assert sum(wait > 0.5 for wait in long) / len(long) == pytest.approx(len(long) / len(waits), rel=0.05)
    assert times[:9] == list(itertools.islice(arrivals(4.0, 7), 9))
    assert times[:9] != list(itertools.islice(arrivals(4.0, 8), 9))


def test_prompt_file_is_parsed() -> None:
    lines = ['"two\\nlines"', "plain text", "", "[1, 2, 3]", "[1, -2]", "17", '{"a": 1}', '""']
    assert parse_prompts("\n".join(lines), "file") == [
        *("two\nlines", "plain text", (1, 2, 3)),
        *("[1, -2]", "17", '{"a": 1}', '""'),
    ]
    with pytest.raises(UserError, match=r"empty\.txt has no prompts"):
        parse_prompts("\n \n", "empty.txt")
