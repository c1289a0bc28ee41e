from collections.abc import Callable, Iterator

import httpx
import pytest

from tpiedge.cli import reach
from tpiedge.cli.reach import AnswerStream, HttpRefusal, MasterClient
from tpiedge.errors import PeerError, UserError

PATH = "/v1/completions"
EVENTS = ("one", "two", "three", "four", "[DONE]")
BROKE = "connection lost, reconnecting for up to 120 s"
AGAIN = "reconnected"

Reply = Callable[[httpx.Request], httpx.Response]


class Breaking(httpx.SyncByteStream):
    def __init__(self, first: int, last: int, *, numbered: bool = True) -> None:
        self._lines = [
            (f"id: {number}\n" if numbered else "") + f"data: {EVENTS[number - 1]}\n\n"
            for number in range(first, last)
        ]
        self._whole = last > len(EVENTS)

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            yield line.encode()
        if not self._whole:
            yield b"id: 99\nda"
            raise httpx.ReadError("cut")


def begun(first: int, last: int, *, named: bool = True) -> Reply:
    headers = {"x-request-id": "cmpl-1"} | ({"x-resumable": "yes"} if named else {})
    return lambda _request: httpx.Response(200, headers=headers, stream=Breaking(first, last, numbered=named))


def refusal(status: int, code: str = "none") -> Reply:
    return lambda _request: httpx.Response(status, json={"error": {"message": "no", "code": code}})


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


class Master:
    def __init__(self, *replies: Reply) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        self.notes: list[str] = []
        self.progress: list[str] = []
        self._replies = iter(replies)

    def connected(self) -> httpx.Client:
        return httpx.Client(base_url="http://master", transport=httpx.MockTransport(self._reply))

    def events(self) -> list[str]:
        with self.connected() as http:
            return list(self.stream(http).events())

    def stream(self, http: httpx.Client) -> AnswerStream:
        return AnswerStream(http, PATH, {"model": "demo"}, self.notes.append, self.progress.append)

    def _reply(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.path, request.headers.get("last-event-id")))
        return next(self._replies)(request)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_RETRY_S", 0.0)


def test_stream_reconnects_after_the_last_whole_event() -> None:
    master = Master(
        *(begun(1, 3), unreachable, refusal(503, "shutting_down"), begun(3, 3), unreachable, begun(3, 5)),
        *(refusal(429), refusal(503, "too_many_connections"), begun(5, 6)),
    )
    assert master.events() == list(EVENTS[:-1])
    path = f"{PATH}/cmpl-1"
    assert master.requests[1:] == [("GET", path, "2")] * 5 + [("GET", path, "4")] * 3
    assert master.notes == [BROKE, AGAIN, AGAIN, BROKE, AGAIN], "said again where it had got on"


def test_ping_event_does_not_advance_the_event_id() -> None:
    def only_pings(_request: httpx.Request) -> httpx.Response:
        def lines() -> Iterator[bytes]:
            yield b"event: ping\ndata: ping\n\n"
            raise httpx.ReadError("cut")

        return httpx.Response(200, content=lines())

    master = Master(begun(1, 3), only_pings, begun(3, 6))
    assert master.events() == ["one", "two", "ping", "three", "four"]
    assert [after for _, _, after in master.requests] == [None, "2", "2"]


@pytest.mark.parametrize("reply", [refusal(404), unreachable, lambda _request: httpx.Response(200)])
def test_closing_the_stream_deletes_the_answer(reply: Reply) -> None:
    master = Master(begun(1, 6), reply)
    with master.connected() as http:
        events = master.stream(http).events()
        assert next(events) == "one"
        events.close()
    assert master.requests[1:] == [("DELETE", f"{PATH}/cmpl-1", None)]


def test_non_resumable_answer_ends_with_its_connection() -> None:
    master = Master(begun(1, 3, named=False))
    with pytest.raises(httpx.ReadError):
        master.events()
    assert master.notes == []


def test_stream_fails_when_the_answer_is_gone() -> None:
    master = Master(begun(1, 3), refusal(404))
    with pytest.raises(PeerError, match="no longer has the rest of this answer: ask again"):
        master.events()


@pytest.mark.parametrize("reply", [unreachable, refusal(503, "shutting_down"), begun(3, 3)])
def test_reconnecting_stops_after_the_grace_time(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "RECOVERY_GRACE_S", -1.0)
    master = Master(begun(1, 3), reply)
    with pytest.raises((httpx.ConnectError, httpx.ReadError, HttpRefusal)):
        master.events()


def test_prompt_progress_is_not_shown_as_a_pause() -> None:
    said = ": ping\n\n: reading 3 of 9 tokens\n\n: reading 6 of 9 tokens, 2 s left\n\n: reading on\n\ndata: [DONE]\n\n"
    master = Master(lambda _request: httpx.Response(200, text=said))
    assert master.events() == []
    assert master.progress == ["reading 3 of 9 tokens", "reading 6 of 9 tokens, 2 s left"]
    assert master.notes == ["paused: reading on"]


class Ending(httpx.SyncByteStream):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield b'data: {"choices": []}\n\n'
        raise httpx.RemoteProtocolError("peer closed connection")


def silent(_request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")


def talk(monkeypatch: pytest.MonkeyPatch, answer: object, key: str | None = None) -> None:
    monkeypatch.setattr(reach, "RECOVERY_GRACE_S", -1.0)
    transport = httpx.MockTransport(answer)  # type: ignore[arg-type]
    monkeypatch.setattr(
        "tpiedge.cli.reach.httpx.Client",
        lambda **options: REAL(transport=transport, base_url=options["base_url"], headers=options["headers"]),
    )
    said: list[str] = []
    with (
        MasterClient("http://127.0.0.1:1", key) as master,
        master.stream("/v1/completions", {}, said.append, said.append) as events,
    ):
        list(events)


REAL = httpx.Client


def test_error_after_a_broken_answer_does_not_suggest_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerError, match=r"ended during the answer: ask again.*--journal") as ended:
        talk(monkeypatch, lambda _request: httpx.Response(200, stream=Ending()))
    assert "TLS" not in str(ended.value)


def test_error_after_an_empty_reply_suggests_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerError, match=r"ended the connection early \(one with TLS wants https://\)"):
        talk(monkeypatch, silent)


@pytest.mark.parametrize(("key", "words"), [(None, "needs an API key"), ("sk-1", "refuses this API key")])
def test_missing_and_wrong_api_keys_have_their_own_errors(
    monkeypatch: pytest.MonkeyPatch, key: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=f"the master {words}: give --api-key.*tpiedge keys add"):
        talk(monkeypatch, lambda _request: httpx.Response(401), key)
