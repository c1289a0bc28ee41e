import contextlib
import json
import socket

import httpx
import pytest
from starlette.routing import Route

from tests.http.conftest import SECRET
from tpiedge.api.guard import LINK_PATH, OPEN_PATHS, Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.page import is_page
from tpiedge.api.server import Api, ApiServer
from tpiedge.errors import UserError
from tpiedge.host.addresses import Address

KEY = "sk-cafe"
LIMIT_S = 20.0


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def every_route(service):
    api = Api(service, Guard("127.0.0.1", ApiKeys([KEY]), SECRET), Limits())
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
            assert right.status_code != 401 or path == LINK_PATH, (method, path)  # it wants a link's code
        assert http.get("/v1/models").json()["error"]["code"] == "invalid_api_key"


def test_admin_routes_need_the_secret_even_without_api_keys(serve):
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


#: How a server is started, Host headers that name it, and others. Its machine is called Attic.
HOSTS = {
    "loopback": (
        {},
        ["localhost:1", "127.0.0.1", "192.168.1.20:8080", "[::1]:80", "LOCALHOST"],
        ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", ""],
    ),
    "public names": (
        {"public_names": ["AI.example.org.", "chat.example.org:8443"]},
        ["ai.example.org", "AI.Example.ORG:443", "ai.example.org:8080", "chat.example.org:8443", "localhost"],
        ["evil.example", "ai.example.org.evil.example", "x.ai.example.org", "example.org"],
    ),
    "insecure": (
        {"host": "0.0.0.0", "insecure": True},
        [
            "192.168.1.20:8080",
            "[fe80::1]:8080",
            "localhost:8080",
            "attic:8080",
            "ATTIC.local",
            "attic.lan.example",
        ],
        ["evil.example:8080", "attic.evil.example", "192.168.1.20.evil.example", ""],
    ),
}


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.usefixtures("attic")
@pytest.mark.fault("H5", "403")
@pytest.mark.fault("H5", "403 for all but the names that the user gave")
def test_another_host_name_is_refused(serve, kind):
    options, ours, others = HOSTS[kind]
    with httpx.Client(base_url=serve(**options).url) as http:
        for host in ours:
            assert http.get("/v1/models", headers={"Host": host}).status_code == 200, host
        for host in others:
            answer = http.get("/v1/models", headers={"Host": host})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed"), host


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("insecure", [False, True])
def test_health_checks_need_no_host_header(serve, path, insecure):
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
    "name",
    ["", "https://ai.example.org", "ai.example.org/", "*", "a b", "a:b", "-a", "\u00e4.example", "a" * 5000],
)
def test_invalid_public_names_are_refused(name):
    with pytest.raises(UserError, match="--public-name") as raised:
        Guard("127.0.0.1", ApiKeys(), SECRET, public_names=[name])
    assert len(str(raised.value)) < 250


@pytest.fixture
def attic(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Attic")
    monkeypatch.setattr(socket, "getfqdn", lambda: "attic.lan.example")


@pytest.mark.fault("H5", "403")
def test_foreign_origin_is_refused_when_no_key_is_set(serve):
    for server in (serve(host="0.0.0.0", insecure=True), serve()):
        http = httpx.Client(base_url=server.url)
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


@pytest.mark.fault("H5", "no header permits another origin")
def test_cross_origin_headers_are_never_sent(serve):
    with httpx.Client(base_url=serve().url) as http:
        answer = http.options("/v1/chat/completions", headers={"Origin": "https://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        simple = http.post("/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"})
        assert simple.status_code == 415


def test_listening_publicly_needs_keys_or_insecure_flag():
    for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1"):
        Guard(host, ApiKeys(), SECRET)
    for host in ("0.0.0.0", "::", "192.168.0.5", "pi.local"):
        Guard(host, ApiKeys(["k"]), SECRET)
        Guard(host, ApiKeys(), SECRET, insecure=True)
        with pytest.raises(UserError, match="for everybody"):
            Guard(host, ApiKeys(), SECRET)
    for key in ("", "k\n", "schl\u00fcssel"):
        with pytest.raises(UserError):
            ApiKeys([key])


def test_empty_or_reused_admin_secret_is_refused(service):
    for keys, secret in (([SECRET], SECRET), ([], "")):
        with pytest.raises(UserError):
            Guard("127.0.0.1", ApiKeys(keys), secret)


def test_port_in_use_gives_a_one_line_error(serve, service):
    server = serve()
    with pytest.raises(UserError, match="in use") as raised:
        ApiServer(service, Guard("127.0.0.1", ApiKeys(), SECRET), Address(*server.address), Limits())
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
def test_large_request_headers_are_refused(serve):
    server = serve()
    assert status_of(raw(server, post(b"{}", "Content-Length: 2", "X: " + "a" * 20_000))) in (400, 431)
    assert status_of(raw(server, post(b"", "X: " + "a" * 8_000_000))) == 400
    many = [f"X{number}: 1" for number in range(3000)]
    assert status_of(raw(server, post(b"{}", "Content-Length: 2", *many))) in (400, 431)


@pytest.mark.fault("H2", "413")
def test_large_body_is_refused_by_declared_and_actual_size(serve):
    server = serve(limits=Limits(body_bytes=1000, linger_s=0.2))
    assert error_of(raw(server, post(b"", "Content-Length: 1000000000")))["code"] == "body_too_large"
    assert status_of(raw(server, post(b"", "Content-Length: " + "9" * 400))) in (400, 413)
    chunks = b"".join(b"200\r\n" + b" " * 0x200 + b"\r\n" for _ in range(4)) + b"0\r\n\r\n"
    assert status_of(raw(server, post(chunks, "Transfer-Encoding: chunked"))) == 413


@pytest.mark.fault("H2", "400, and the connection is closed")
def test_invalid_or_smuggled_http_is_refused(serve):
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


@pytest.mark.fault("H1", "closed at their deadlines; answers go on")
def test_slow_request_headers_and_bodies_time_out(serve, service):
    server = serve(limits=Limits(headers_s=2.0, body_s=2.0))  # sending all at once takes some of it
    body = {"model": "babbler", "prompt": "Once", "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
        generation = service.generations.get(timeout=LIMIT_S)
        assert raw(server, b"") == b""
        assert raw(server, b"GET /health HTTP/1.1\r\nHost: loc") == b""
        assert status_of(raw(server, post(b"{", "Content-Length: 100"))) == 408
        generation.finish("stop")
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_unknown_paths_and_methods_return_json_errors(serve):
    with httpx.Client(base_url=serve().url) as http:
        for method, path, status in (
            ("GET", "/v2", 404),
            ("DELETE", "/v1/models", 405),
            ("GET", "/v1/completions", 405),
        ):
            answer = http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["message"]
