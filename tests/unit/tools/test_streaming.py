"""What clients of the tools make of a stream."""

import httpx
import pytest

from tools.streaming import BrokenAnswer, Crowd, events

EVENT = 'data: {"choices": []}\n\n'
DONE = "data: [DONE]\n\n"


def heard(body: str, status: int = 200) -> tuple[list[object], list[str]]:
    """The events, and what was said beside them."""
    notes: list[str] = []
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, text=body))
    with httpx.Client(base_url="http://cluster", transport=transport) as client:
        return list(events(client, "/v1/completions", {}, notes.append)), notes


def test_a_stream_to_its_end() -> None:
    said = f": ping\n\n{EVENT}: node 1 was lost\n\n{EVENT}{DONE}"
    assert heard(said) == ([{"choices": []}] * 2, ["the answer pauses: node 1 was lost"])


@pytest.mark.parametrize("last", ["message_stop", "response.completed", "response.incomplete"])
def test_streams_of_other_apis_end_with_an_event_of_theirs(last: str) -> None:
    said = f'event: ping\ndata: {{"n": 1}}\n\nevent: {last}\ndata: {{"n": 2}}\n\n'
    assert heard(said)[0] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("later", 503, "503: later"),
        ('data: {"error": {"code": "worker_lost"}}\n\n', 200, "worker_lost"),
        (EVENT, 200, "ended the answer early"),
    ],
)
def test_answers_that_break(body: str, status: int, words: str) -> None:
    with pytest.raises(BrokenAnswer, match=words):
        heard(body, status)


def test_a_crowd_says_who_failed() -> None:
    def fail(_client: httpx.Client) -> None:
        raise ValueError("no event")

    crowd = Crowd("http://127.0.0.1:1", [fail, lambda _client: None])
    crowd.start()
    assert crowd.join() == ["client 0: ValueError: no event"]
