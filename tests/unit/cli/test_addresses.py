"""The addresses that a master tells people to type."""

from types import SimpleNamespace

import pytest

from tpiedge.cli import master
from tpiedge.host.addresses import Address


@pytest.mark.parametrize(
    ("http", "lan", "url"),
    [
        (Address("0.0.0.0", 8080), "192.168.1.10", "http://192.168.1.10:8080"),
        (Address("0.0.0.0", 8080), None, "http://127.0.0.1:8080"),  # no network
        (Address("127.0.0.1", 8080), "192.168.1.10", "http://127.0.0.1:8080"),
        (Address("192.168.7.7", 8080), "192.168.1.10", "http://192.168.7.7:8080"),
    ],
)
def test_the_url_is_one_that_others_can_type(
    monkeypatch: pytest.MonkeyPatch, http: Address, lan: str | None, url: str
) -> None:
    monkeypatch.setattr(master, "outgoing_host", lambda: lan)
    assert master._url(http, SimpleNamespace(url=f"http://{http}")) == url
