"""`GET /metrics` over a real socket."""

import httpx

from tests.http.conftest import SECRET
from tpiedge.testing.service import FakeService

KEY = "sk-cafe"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_the_page_is_prometheus_text(serve):
    answer = httpx.get(f"{serve().url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE tpiedge_ready gauge\ntpiedge_ready 1.0\n" in answer.text


def test_it_is_there_while_the_cluster_is_not_ready(serve, service):
    service.unavailable = "loading the weights"
    answer = httpx.get(f"{serve().url}/metrics")
    assert answer.status_code == 200
    assert "tpiedge_ready 0.0\n" in answer.text


def test_where_there_are_keys_it_needs_one(serve):
    server = serve(keys=[KEY])
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    assert httpx.get(f"{server.url}/metrics", headers=bearer(SECRET)).status_code == 401
    assert httpx.get(f"{server.url}/metrics", headers=bearer(KEY)).status_code == 200


def test_it_can_only_be_read(serve):
    assert httpx.post(f"{serve().url}/metrics").status_code == 405


def test_every_look_has_the_nodes_asked(serve, service, monkeypatch):
    looks = []
    monkeypatch.setattr(FakeService, "observe", lambda self: looks.append(1) or self.status())
    server = serve()
    httpx.get(f"{server.url}/metrics")
    httpx.get(f"{server.url}/ready")
    assert len(looks) == 1
