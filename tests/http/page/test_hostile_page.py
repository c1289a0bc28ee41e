"""A page of somebody else in a real browser, beside a server that needs no key, can neither use it nor read of it."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browsing.browser import Browser
from tests.fakes.service import FakeService
from tests.http.conftest import SECRET
from tpiedge.api.server import ApiServer

_HTML = Path(__file__).with_name("hostile_page.html").read_bytes()
#: Browsers know themselves that it leads to this computer, and take it for another site.
_EVIL = "evil.localhost"
_ATTACK_S = 60.0


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(_HTML)))
        self.end_headers()
        self.wfile.write(_HTML)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    """Ends what browsers connected ahead of use, which they would send their next request on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self._connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _hostile(browser: Browser, host: str) -> Iterator[int]:
    """Yields the port from which the browser got the page; no server listens there any more."""
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        browser.driver.get(f"http://{host}:{server.server_port}/")
        server.shutdown()
        thread.join()
    yield server.server_port
    browser.driver.get("about:blank")
    browser.complaints()  # of all that the page was refused


def _attack(browser: Browser, base: str, code: str = "") -> dict[str, str]:
    """Returns what the page made of each attempt. `code`: of an administrator's link, if the page came to know one."""
    browser.run("window.code = arguments[1]; attack(arguments[0])", base, code)
    browser.wait(lambda: browser.driver.title == "done", _ATTACK_S)
    found: dict[str, str] = browser.run("return window.results")
    return found


@pytest.mark.parametrize("host", [_EVIL, "localhost"], ids=["another site", "another port"])
@pytest.mark.fault("H5", "a page in a real browser can neither use nor read anything, whatever it sends")
def test_foreign_page_can_neither_use_nor_read_the_server(
    serve: Callable[..., ApiServer], service: FakeService, browser: Browser, host: str
) -> None:
    with _hostile(browser, host):
        results = _attack(browser, serve().url)
    assert results["POST as text, no-cors"] == "opaque", "it came to the server"
    assert set(results.values()) <= {"opaque", "failed", "sent"}
    assert service.generations.empty()


@pytest.mark.fault("H5", "a page whose name comes to lead to the master reads refusals only")
def test_dns_rebinding_page_is_refused(
    serve: Callable[..., ApiServer], service: FakeService, browser: Browser
) -> None:
    with _hostile(browser, _EVIL) as port:
        serve(port=port)
        results = _attack(browser, "")
    assert results["GET"].startswith("403 "), "it came to the server"
    assert all(one in ("opaque", "failed", "sent") or one.startswith("403 ") for one in results.values())
    assert service.generations.empty()


def test_foreign_page_succeeds_when_its_origin_is_allowed(
    serve: Callable[..., ApiServer], service: FakeService, browser: Browser
) -> None:
    with _hostile(browser, _EVIL) as port:
        results = _attack(browser, serve(origins=[f"http://{_EVIL}:{port}"]).url)
    assert results["GET"].startswith("200 ")
    assert service.generations.qsize() > 0


def _code(server: ApiServer) -> str:
    answer = httpx.post(f"{server.url}/admin/link", headers={"Authorization": f"Bearer {SECRET}"})
    return str(answer.json()["code"])


@pytest.mark.parametrize("keys", [[], ["k"]], ids=["without API keys", "with API keys"])
@pytest.mark.fault(
    "H5", "a page in a real browser that knows a link's code is no administrator, nor beside one"
)
def test_foreign_page_does_not_become_the_administrator(
    serve: Callable[..., ApiServer], browser: Browser, keys: list[str]
) -> None:
    server = serve(keys=keys)
    browser.open(server.url)
    browser.driver.get(f"{server.url}/#admin={_code(server)}")
    browser.wait(lambda: browser.run("return localStorage['tpiedge.key.admin']") == SECRET)
    with _hostile(browser, _EVIL):
        results = _attack(browser, server.url, _code(server))
    assert set(results.values()) <= {"opaque", "failed", "sent"}


@pytest.mark.parametrize("keys", [[], ["k"]], ids=["without API keys", "with API keys"])
@pytest.mark.fault(
    "H5", "a page whose name comes to lead to the master is no administrator, even with a link's code"
)
def test_dns_rebinding_page_does_not_become_the_administrator(
    serve: Callable[..., ApiServer], browser: Browser, keys: list[str]
) -> None:
    with _hostile(browser, _EVIL) as port:
        results = _attack(browser, "", _code(serve(port=port, keys=keys)))
    assert results["key of a link"].startswith("403 ")
    assert all(
        results[name][:4] in ("401 ", "403 ") for name in ("cluster", "another link", "key without a code")
    )
