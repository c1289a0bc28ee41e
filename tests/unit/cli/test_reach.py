import httpx
import pytest

from tpiedge.cli.reach import MasterClient
from tpiedge.errors import PeerError, UserError


class Ending(httpx.SyncByteStream):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield b'data: {"choices": []}\n\n'
        raise httpx.RemoteProtocolError("peer closed connection")


def silent(_request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")


def talk(monkeypatch: pytest.MonkeyPatch, answer: object, key: str | None = None) -> None:
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


def test_a_master_that_ends_in_the_middle_of_an_answer_speaks_no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerError, match=r"ended in the middle of the answer: ask again.*--journal") as ended:
        talk(monkeypatch, lambda _request: httpx.Response(200, stream=Ending()))
    assert "TLS" not in str(ended.value)


def test_one_that_says_nothing_may_want_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerError, match=r"ended the connection early \(one with TLS wants https://\)"):
        talk(monkeypatch, silent)


@pytest.mark.parametrize(("key", "words"), [(None, "wants a key"), ("sk-1", "does not know this key")])
def test_a_missing_key_and_a_wrong_one(monkeypatch: pytest.MonkeyPatch, key: str | None, words: str) -> None:
    with pytest.raises(UserError, match=f"the master {words}: give --api-key"):
        talk(monkeypatch, lambda _request: httpx.Response(401), key)
