"""Who may ask, from where, and with what."""

import contextlib
import json
import socket

import httpx
import pytest
from starlette.routing import Route

from tests.http.conftest import SECRET
from tpiedge.api.app import Api
from tpiedge.api.guard import OPEN_PATHS, Guard, check_bind, is_loopback, public_name
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.origins import Origins
from tpiedge.api.page import is_page
from tpiedge.api.server import ApiServer
from tpiedge.errors import UserError

KEY = "sk-cafe"
LIMIT_S = 20.0


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def every_route(service):
    api = Api(service, Guard("127.0.0.1", ApiKeys([KEY]), SECRET, 1000), Limits())
    try:
        for route in api.routes:
            assert isinstance(route, Route)
            for method in sorted(route.methods):
                if not is_page(route.path):
                    yield method, route.path.replace("{name:path}", "babbler")
    finally:
        api.close(1)


@pytest.mark.fault("H4", "401 on every route that the server has")
def test_every_route_but_health_and_readiness_needs_the_right_key(serve, service):
    server = serve(keys=[KEY])
    wrong = [
        {},
        {"Authorization": "Bearer"},
        bearer("wrong"),
        bearer(KEY + "x"),
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
    ]
    wrong += [bearer("x" * 8000), {"Authorization": "Bearer \u00fc".encode()}]
    routes = [
        *every_route(service),
        ("GET", "/docs"),
        ("OPTIONS", "/v1/models"),
        ("GET", "/admin"),
    ]
    with httpx.Client(base_url=server.url) as http:
        for method, path in routes:
            others = [bearer(KEY)] if path.startswith("/admin") else [bearer(SECRET)]
            for headers in wrong + others:
                answer = http.request(method, path, headers=headers)
                assert answer.status_code == (200 if path in OPEN_PATHS else 401), (method, path, headers)
            right = http.request(method, path, headers=bearer(SECRET if path.startswith("/admin") else KEY))
            assert right.status_code != 401, (method, path)
        assert http.get("/v1/models").json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("reason", ["", "laptop (192.0.2.7): silent for 1.6 s"])
def test_whoever_watches_the_state_needs_no_key_and_hears_nothing_else(serve, service, path, reason):
    service.unavailable = reason
    answer = httpx.get(f"{serve(keys=[KEY]).url}{path}")
    assert answer.status_code == (503 if reason and path == "/ready" else 200)
    if path == "/health":
        expected = {"status": "ok"}
    elif reason:
        advice = "the cluster cannot answer yet: 'tpiedge nodes' on the master's computer says why"
        expected = {"ready": False, "reason": advice}
    else:
        expected = {"ready": True}
    assert answer.json() == expected


def test_several_keys(serve):
    server = serve(keys=["one", "two"])
    with httpx.Client(base_url=server.url) as http:
        assert [
            http.get("/v1/models", headers=bearer(key)).status_code for key in ("one", "two", "three")
        ] == [200, 200, 401]


def test_administration_needs_its_secret_without_keys_too(serve):
    with httpx.Client(base_url=serve().url) as http:
        assert http.get("/v1/models").status_code == 200
        assert http.get("/admin/nodes").status_code == 401
        assert http.get("/admin/nodes", headers=bearer(SECRET)).json()["ready"] is True
        pending = http.get("/admin/nodes/pending", headers=bearer(SECRET)).json()["pending"]
        assert pending[0]["name"] == "attic"
        approved = http.post("/admin/nodes/approve", headers=bearer(SECRET), json={"code": "K7Q2"})
        assert approved.json() == {"name": "attic"}
        for path, body, status in (
            ("approve", {"code": "X"}, 400),
            ("approve", {}, 400),
            ("drain", {"name": ""}, 400),
            ("revoke", {"name": "nobody"}, 404),
            ("drain", {"name": "nobody"}, 404),
            ("undrain", {"name": "nobody"}, 404),
            ("clear", {"name": "nobody"}, 404),
        ):
            refused = http.post(f"/admin/nodes/{path}", headers=bearer(SECRET), json=body)
            assert refused.status_code == status
            assert refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("192.168.1.20:8080", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
@pytest.mark.fault("H5", "403")
def test_another_host_name_is_refused_on_loopback(serve, host, status):
    with httpx.Client(base_url=serve().url) as http:
        assert http.get("/v1/models", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("insecure", [False, True])
def test_whoever_watches_the_state_needs_no_host_header(serve, path, insecure):
    """HAProxy's check speaks HTTP/1.0, and asks by OPTIONS where it is given nothing but a path."""
    server = serve(host="0.0.0.0" if insecure else "127.0.0.1", insecure=insecure)
    assert status_of(raw(server, f"GET {path} HTTP/1.0\r\n\r\n".encode())) == 200
    assert status_of(raw(server, f"GET {path} HTTP/1.0\r\nHost:\r\n\r\n".encode())) == 200
    for method in ("HEAD", "OPTIONS"):
        assert status_of(raw(server, f"{method} {path} HTTP/1.0\r\n\r\n".encode())) == 200
    assert status_of(raw(server, f"POST {path} HTTP/1.0\r\n\r\n".encode())) == 405
    for bad in ("Host: evil.example", "Host: localhost\r\nHost: localhost", "Origin: https://evil.example"):
        assert status_of(raw(server, f"GET {path} HTTP/1.0\r\n{bad}\r\n\r\n".encode())) in (400, 403), bad
    for other in ("/v1/models", "/", "/admin/nodes", "/ready/", "/metrics"):
        assert status_of(raw(server, f"GET {other} HTTP/1.0\r\n\r\n".encode())) == 403, other


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("ai.example.org", 200),
        ("AI.Example.ORG:443", 200),
        ("ai.example.org:8080", 200),
        ("chat.example.org:8443", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("ai.example.org.evil.example", 403),
        ("x.ai.example.org", 403),
        ("example.org", 403),
    ],
)
@pytest.mark.fault("H5", "403 for all but the names that the user gave")
def test_a_public_name_is_one_of_the_server_s(serve, host, status):
    names = [public_name("AI.example.org."), public_name("chat.example.org:8443")]
    server = serve(public_names=names)
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/v1/models", headers={"Host": host}).status_code == status


def test_a_page_of_a_public_name_is_the_server_s_own_whatever_host_a_proxy_writes(serve):
    server = serve(public_names=[public_name("ai.example.org"), public_name("ai.example.org:8443")])
    with httpx.Client(base_url=server.url) as http:

        def status(origin, site="same-origin", **headers):
            return http.get(
                "/v1/models", headers={"Origin": origin, "Sec-Fetch-Site": site} | headers
            ).status_code

        assert status("https://ai.example.org") == 200
        assert status("https://ai.example.org", Host="ai.example.org") == 200
        assert status("https://ai.example.org:8443") == 200
        assert status("https://ai.example.org:9443") == 403
        assert status("https://ai.example.org", site="same-site") == 403
        assert status("https://chat.example.org", Host="ai.example.org") == 403


@pytest.mark.parametrize(
    "name",
    ["", "https://ai.example.org", "ai.example.org/", "*", "a b", "a:b", "-a", "\u00e4.example", "a" * 5000],
)
def test_what_is_no_public_name(name):
    with pytest.raises(UserError, match="--public-name") as raised:
        public_name(name)
    assert len(str(raised.value)) < 250


@pytest.fixture
def insecure(serve, monkeypatch):
    """A client of a server for every machine, without a key, on a machine that is called Attic."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Attic")
    monkeypatch.setattr(socket, "getfqdn", lambda: "attic.lan.example")
    with httpx.Client(base_url=serve(host="0.0.0.0", insecure=True).url) as http:
        yield http


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.1.20:8080", 200),
        ("[fe80::1]:8080", 200),
        ("localhost:8080", 200),
        ("attic:8080", 200),
        ("ATTIC.local", 200),
        ("attic.lan.example", 200),
        ("evil.example:8080", 403),
        ("attic.evil.example", 403),
        ("192.168.1.20.evil.example", 403),
        ("", 403),
    ],
)
def test_insecure_serves_machines_and_no_foreign_name(insecure, host, status):
    answer = insecure.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "host_not_allowed"
        assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.fault("H5", "403")
def test_a_foreign_web_page_is_refused_without_a_key(serve, insecure):
    for http in (insecure, httpx.Client(base_url=serve().url)):
        own = f"http://{http.base_url.netloc.decode()}"
        for origin in (
            "https://evil.example",
            "null",
            "",
            own + ".evil.example",
            "http://203.0.113.5",
            own + "0",
        ):
            answer = http.get("/v1/models", headers={"Origin": origin})
            assert answer.status_code == 403, origin
            assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert http.get("/v1/models", headers={"Origin": own}).status_code == 200
        http.close()


def test_with_a_key_any_host_name_and_origin_will_do(serve):
    with httpx.Client(base_url=serve(keys=[KEY]).url) as http:
        foreign = {"Host": "pi.local", "Origin": "https://evil.example"}
        assert http.get("/v1/models", headers=bearer(KEY) | foreign).status_code == 200


@pytest.mark.fault("H5", "no header permits another origin")
def test_no_cross_origin_permission_is_ever_given(serve):
    with httpx.Client(base_url=serve().url) as http:
        answer = http.options("/v1/chat/completions", headers={"Origin": "https://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        simple = http.post("/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"})
        assert simple.status_code == 415


@pytest.mark.parametrize(
    ("host", "keys", "insecure", "fits"),
    [
        ("127.0.0.1", [], False, True),
        ("127.8.8.8", [], False, True),
        ("localhost", [], False, True),
        ("::1", [], False, True),
        ("0.0.0.0", [], False, False),
        ("::", [], False, False),
        ("192.168.0.5", [], False, False),
        ("pi.local", [], False, False),
        ("0.0.0.0", ["k"], False, True),
        ("0.0.0.0", [], True, True),
        ("127.0.0.1", [""], False, False),
        ("127.0.0.1", ["k\n"], False, False),
        ("127.0.0.1", ["schl\u00fcssel"], False, False),
    ],
)
def test_where_it_may_listen(host, keys, insecure, fits):
    if fits:
        check_bind(host, ApiKeys(keys), insecure, Origins())
    else:
        with pytest.raises(UserError):
            check_bind(host, ApiKeys(keys), insecure, Origins())


def test_loopback_names():
    assert not is_loopback("localhost.evil.example")
    assert not is_loopback("")


def test_the_admin_secret_is_no_api_key(service):
    for keys, secret in (([SECRET], SECRET), ([], "")):
        with pytest.raises(UserError):
            Guard("127.0.0.1", ApiKeys(keys), secret, 1000)


def test_a_port_in_use_is_one_line(serve, service):
    server = serve()
    with pytest.raises(UserError, match="in use") as raised:
        ApiServer(service, "127.0.0.1", server.address[1], ApiKeys(), SECRET)
    assert "\n" not in str(raised.value)


def raw(server, data, shut=False):
    """All that the server answers until it closes the connection."""
    with socket.create_connection(server.address, timeout=LIMIT_S) as connection:
        with contextlib.suppress(ConnectionError):  # it may refuse before it has read all
            connection.sendall(data)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(65536):
                found += more
        return found


def post(body, *headers):
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *headers,
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


def error_of(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.fault("H2", "431")
def test_large_heads_are_refused(serve):
    server = serve()
    assert status_of(raw(server, post(b"{}", "Content-Length: 2", "X: " + "a" * 20_000))) in (400, 431)
    assert status_of(raw(server, post(b"", "X: " + "a" * 8_000_000))) == 400
    many = [f"X{number}: 1" for number in range(3000)]
    assert status_of(raw(server, post(b"{}", "Content-Length: 2", *many))) in (400, 431)


@pytest.mark.fault("H2", "413")
def test_a_large_body_is_refused_by_its_announcement_and_by_its_size(serve):
    server = serve(limits=Limits(body_bytes=1000, linger_s=0.2))
    assert error_of(raw(server, post(b"", "Content-Length: 1000000000")))["code"] == "body_too_large"
    assert status_of(raw(server, post(b"", "Content-Length: " + "9" * 400))) in (400, 413)
    chunks = b"".join(b"200\r\n" + b" " * 0x200 + b"\r\n" for _ in range(4)) + b"0\r\n\r\n"
    assert status_of(raw(server, post(chunks, "Transfer-Encoding: chunked"))) == 413


@pytest.mark.fault("H2", "400, and the connection is closed")
def test_what_is_no_http_or_smuggles_is_refused(serve):
    server = serve()
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 300 + b"\r\n\r\n", b"GET\r\n\r\n"):
        answer = raw(server, data)
        assert status_of(answer) == 400
        assert error_of(answer)["code"] == "invalid_http"
    both = post(b"0\r\n\r\n", "Content-Length: 3", "Content-Length: 5")
    assert status_of(raw(server, both)) == 400
    both = post(b"0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked")
    answer = raw(server, both.replace(b"Connection: close\r\n", b"") * 2)
    assert status_of(answer) == 400
    assert "either" in error_of(answer)["message"]
    assert answer.count(b"HTTP/1.1") == 1


def test_empty_lines_before_a_request_are_overlooked(serve):
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    answer = raw(serve(), b"\r\n" + get + b"\r\n" + b"\r\n" * 5000 + get + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.fault("H1", "closed at their deadlines; answers go on")
def test_slow_heads_and_bodies_are_given_up(serve, service):
    server = serve(limits=Limits(headers_s=2.0, body_s=2.0))  # whoever sends all at once needs some of it
    body = {"model": "babbler", "prompt": "Once", "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
        generation = service.generations.get(timeout=LIMIT_S)
        assert raw(server, b"") == b""
        assert raw(server, b"GET /health HTTP/1.1\r\nHost: loc") == b""
        assert status_of(raw(server, post(b"{", "Content-Length: 100"))) == 408
        generation.finish("stop")
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_a_body_cut_short_leaves_nothing(serve, service):
    raw(serve(), post(b"{", "Content-Length: 100"), shut=True)
    assert service.generations.empty()


def test_unknown_paths_and_methods_have_the_same_shape(serve):
    with httpx.Client(base_url=serve().url) as http:
        for method, path, status in (
            ("GET", "/v2", 404),
            ("DELETE", "/v1/models", 405),
            ("GET", "/v1/completions", 405),
        ):
            answer = http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["message"]
