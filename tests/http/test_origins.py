import json
import socket

import httpx
import pytest

from tests.http.conftest import SECRET, answers
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.errors import UserError

PAGE = "https://chat.example"
EVIL = "https://evil.example"
LIMIT_S = 20.0
BODY = json.dumps({"model": "babbler", "prompt": "x"})
ASKS = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
}


def permissions(answer):
    return {name for name in answer.headers if name.startswith("access-control")}


@pytest.fixture
def open_to_page(serve):
    with httpx.Client(base_url=serve(origins=[PAGE]).url) as http:
        yield http


def test_allowed_origin_may_send_and_read_requests(open_to_page, service):
    answers(service, "Hello")
    preflight = open_to_page.options("/v1/completions", headers={"Origin": PAGE} | ASKS)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "Origin" in preflight.headers["vary"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-headers"] == ASKS["Access-Control-Request-Headers"]
    site = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    answer = open_to_page.post("/v1/completions", headers=site, json=json.loads(BODY))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    wrong = open_to_page.post("/v1/completions", headers=site, json={})
    assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, PAGE)


@pytest.mark.parametrize(
    "origin",
    [EVIL, "null", "", "http://chat.example", PAGE + ":444", PAGE + ".evil.example", "*", f"{PAGE}, {EVIL}"],
)
def test_other_origins_are_refused(open_to_page, service, origin):
    for method, path in (("OPTIONS", "/v1/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models")):
        answer = open_to_page.request(method, path, headers={"Origin": origin} | ASKS)
        assert answer.status_code == 403
        assert not permissions(answer)
    assert service.generations.empty()


def test_pages_need_the_key_except_for_preflights(serve):
    with httpx.Client(base_url=serve(keys=["k"], origins=["*"]).url) as http:
        assert http.options("/v1/models", headers={"Origin": EVIL} | ASKS).status_code == 200
        refused = http.get("/v1/models", headers={"Origin": EVIL})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, EVIL)
        right = {"Origin": EVIL, "Authorization": "Bearer k"}
        assert http.get("/v1/models", headers=right).status_code == 200
        assert not permissions(http.get("/v1/models", headers={"X-Api-Key": "k"}))


@pytest.mark.parametrize(("extra", "status"), [
    (["Host: evil.example"], 403),
    (["Host: 127.0.0.1", "Host: 127.0.0.1"], 400),
    (["Host: 127.0.0.1", "Content-Length: 1", "Transfer-Encoding: chunked"], 400),
    (["Host: 127.0.0.1", f"X-Long: {'x' * 17_000}"], 431),
    (["Host: 127.0.0.1"], 200),
])  # fmt: skip
def test_a_preflight_is_checked_as_every_request_is(serve, extra, status):
    asks = [f"Origin: {PAGE}", "Access-Control-Request-Method: HEAD", "Connection: close"]
    with socket.create_connection(serve(origins=[PAGE]).address, timeout=LIMIT_S) as connection:
        connection.sendall(
            "\r\n".join(["OPTIONS /v1/models HTTP/1.1", *asks, *extra, "", "0", "", ""]).encode()
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)


def test_admin_routes_permit_no_cross_origin_page(serve):
    with httpx.Client(base_url=serve(keys=["k"], origins=["*"]).url) as http:
        for path in ("/admin/nodes", "/admin"):
            preflight = http.options(path, headers={"Origin": PAGE} | ASKS)
            assert preflight.status_code == 401
            assert not permissions(preflight)
        known = http.get("/admin/nodes", headers={"Origin": PAGE, "Authorization": f"Bearer {SECRET}"})
        assert not permissions(known)


def test_allowing_every_origin_without_a_key_is_refused():
    with pytest.raises(UserError, match="lets every web page in"):
        Guard("127.0.0.1", ApiKeys(), SECRET, insecure=True, origins=["*"])


@pytest.mark.parametrize(
    "origin", ["", "null", "chat.example", PAGE + "/path", "https://*.example", "https://a b", "x\ny"]
)
def test_invalid_origin_gives_a_one_line_error(origin):
    with pytest.raises(UserError, match="is not an origin like") as raised:
        Guard("127.0.0.1", ApiKeys(), SECRET, origins=[origin])
    assert "\n" not in str(raised.value)


#: What a page can have a browser send without asking first: forms, images, scripts, links, beacons, WebSockets; and
#: what it would ask for first.
_FORM = "Content-Type: application/x-www-form-urlencoded"
HOSTILE = [
    ("POST", "/v1/completions", "Content-Type: text/plain", f"Origin: {EVIL}"),
    ("POST", "/v1/completions", "Content-Type: text/plain", "Origin: null"),
    ("POST", "/v1/completions", _FORM, f"Origin: {EVIL}"),
    ("POST", "/v1/completions", "Content-Type: multipart/form-data; boundary=x", f"Origin: {EVIL}"),
    ("POST", "/v1/completions", "Content-Type: application/json", f"Origin: {EVIL}"),
    ("POST", "/v1/completions", "Content-Type: application/json", "Sec-Fetch-Site: cross-site"),
    ("POST", "/v1/completions", "Content-Type: application/json", "Sec-Fetch-Site: same-site"),
    ("POST", "/v1/chat/completions", "Content-Type: application/json", "Origin: http://localhost:3000"),
    ("POST", "/admin/nodes/drain", "Content-Type: application/json", f"Origin: {EVIL}"),
    ("GET", "/v1/models", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"),
    ("GET", "/metrics", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: script"),
    ("GET", "/v1/completions/cmpl-00", "Sec-Fetch-Site: cross-site"),
    (
        "GET",
        "/v1/models",
        f"Origin: {EVIL}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: eA==",
    ),
    ("DELETE", "/v1/completions/cmpl-00", f"Origin: {EVIL}"),
    ("OPTIONS", "/v1/completions", f"Origin: {EVIL}", "Access-Control-Request-Method: POST"),
    ("OPTIONS", "/v1/completions/cmpl-00", f"Origin: {EVIL}", "Access-Control-Request-Method: DELETE"),
]


@pytest.mark.fault("H5", "403")
@pytest.mark.parametrize("request_parts", HOSTILE, ids=lambda parts: " ".join(parts[:2]) + f" {parts[-1]}")
def test_requests_a_hostile_page_can_send_are_refused(serve, service, request_parts):
    server = serve()
    method, path, *headers = request_parts
    host = f"Host: 127.0.0.1:{server.address[1]}"
    head = "\r\n".join([f"{method} {path} HTTP/1.1", host, *headers, f"Content-Length: {len(BODY)}"])
    with socket.create_connection(server.address, timeout=LIMIT_S) as connection:
        connection.sendall(f"{head}\r\n\r\n{BODY}".encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"access-control" not in answer.lower()
    assert service.generations.empty()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_form_content_types_are_refused_even_without_origin(serve, service, kind):
    answer = httpx.post(f"{serve().url}/v1/completions", content=BODY, headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert service.generations.empty()
