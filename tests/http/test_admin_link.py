"""The code of a link gets the admin key once, on this computer alone."""

import httpx
import pytest
from starlette.requests import Request

from tests.http.conftest import SECRET
from tpiedge.api.errors import ApiError
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys

EVIL = "http://evil.example"


@pytest.fixture(params=[[], ["k"]], ids=["without API keys", "with API keys"])
def http(request, serve):
    with httpx.Client(base_url=serve(keys=request.param, origins=[EVIL]).url) as http:
        yield http


def code_of(http):
    answer = http.post("/admin/link", headers={"Authorization": f"Bearer {SECRET}"})
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()["code"]


def traded(http, code, **headers):
    return http.post("/admin/key", headers={"Authorization": f"Bearer {code}", **headers})


def test_code_gets_the_key_once_and_only_the_latest(http):
    first, code = code_of(http), code_of(http)
    for wrong in (first, "x"):
        answer = traded(http, wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_link")
    assert http.post("/admin/key").status_code == 401
    answer = traded(http, code)
    assert (answer.json(), answer.headers["cache-control"]) == ({"key": SECRET}, "no-store")
    assert traded(http, code).status_code == 401
    assert http.post("/admin/key").status_code == 401, "no code is no used code"


@pytest.mark.parametrize("headers", [
    {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}, {"Via": "1.1 proxy"}, {"X-Real-IP": "127.0.0.1"},
    {"Host": "evil.example"}, {"Host": "192.168.1.20:8080"}, {"Host": "localhost.evil.example"},
    {"Origin": EVIL}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
], ids=lambda headers: "=".join(*headers.items()))  # fmt: skip
@pytest.mark.fault(
    "H5", "a link's code is refused, and stays valid, when it comes by a proxy or another page"
)
def test_code_from_elsewhere_is_refused_and_stays_valid(http, headers):
    code = code_of(http)
    assert traded(http, code, **headers).status_code == 403
    assert traded(http, code).status_code == 200


@pytest.mark.parametrize(
    ("peer", "status"), [("127.0.0.1", 200), ("::1", 200), ("192.168.1.7", 403), ("", 403)]
)
def test_code_counts_only_from_loopback(peer, status):
    guard = Guard("0.0.0.0", ApiKeys(), SECRET, insecure=True)
    headers = [(b"host", b"localhost:8080"), (b"authorization", f"Bearer {guard.admin.new_code()}".encode())]
    request = Request({"type": "http", "headers": headers, "client": (peer, 5)})
    if status == 200:
        assert guard.admin_key(request) == SECRET
        return
    with pytest.raises(ApiError, match="own computer") as raised:
        guard.admin_key(request)
    assert raised.value.status == status


@pytest.mark.parametrize("path", ["/admin/key", "/admin/link", "/admin/cluster"])
def test_preflight_of_an_admin_route_is_never_permitted(http, path):
    asks = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    answer = http.options(path, headers={**asks, "Access-Control-Request-Headers": "authorization"})
    assert answer.status_code in (401, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_proxy_that_adds_nothing_is_no_administrator(http):
    """Some proxies come from loopback, name it as the host and add no header: only the key counts."""
    for headers in ({}, {"X-Tpiedge-Admin": "1"}, {"Origin": str(http.base_url).rstrip("/")}):
        assert http.get("/admin/cluster", headers=headers).status_code == 401
        assert http.post("/admin/link", headers=headers).status_code == 401
