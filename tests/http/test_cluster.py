import hashlib
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import httpx
import openai
import pytest

from tests.http.conftest import SECRET, answers
from tpiedge.api import admin
from tpiedge.master.counters import Counted
from tpiedge.master.history import ClusterEvent
from tpiedge.master.status import NodeStatus
from tpiedge.wire.control import Stats, WorkerLink

NODE = NodeStatus(
    "master", 0, "ready", (0, 2), (0, 4), 2, 1 << 30, 3e9, 50 << 20, 0.1, planned_bytes=400 << 20
)
ATTIC = replace(NODE, name="w-1", rank=1, host="attic", attention=(2, 4), ffn=(4, 16), round_trip_s=0.001,
                link_bytes_per_s=3e7)  # fmt: skip
LIMIT_S = 30.0
ADMIN = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture
def server(serve, service):
    service._nodes = (NODE, ATTIC)
    service.told = (ClusterEvent(1.7e9, "joined", "attic"),)
    return serve()


def look(server, **headers):
    return httpx.get(f"{server.url}/admin/cluster", headers=ADMIN | headers)


def shape(value):
    """`value` with types in place of what is neither object nor list; of a list its first."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else type(value)


def test_admin_nodes_json_keeps_its_names_and_types(server, service):
    """`tpiedge nodes --json` prints it."""
    stats = Stats(*range(len(Stats.__struct_fields__)))
    service._nodes = (replace(NODE, counted=Counted(stats, stats, 1.0)),)
    service.links = (WorkerLink(1, 2, 0.001),)
    found = httpx.get(f"{server.url}/admin/nodes", headers=ADMIN).json()
    assert found["nodes"][0]["counted"]["latest"]["steps"] == stats.steps
    found = shape(found)
    counters = dict.fromkeys(Stats.__struct_fields__, int)
    histogram = {"bounds": [float], "counts": [int], "total": float}
    assert found.pop("nodes") == [
        {
            **dict.fromkeys(("name", "state", "why", "host", "spare", "not_stocked"), str),
            **dict.fromkeys(("rank", "threads", "memory_bytes", "weight_bytes", "planned_bytes"), int),
            **dict.fromkeys(("disk_bytes", "fetched_bytes", "fetch_total_bytes"), int),
            **dict.fromkeys(("keep_bytes", "park_bytes"), int),
            **dict.fromkeys(("speed", "last_seen_s", "fetch_bytes_per_s", "left_out_s"), float),
            **dict.fromkeys(("round_trip_s", "link_bytes_per_s"), float),
            "attention": [int],
            "ffn": [int],
            "pid": type(None),
            "counted": {"latest": counters, "first": counters, "spent_s": float},
            "stocked": bool,
        }
    ]
    assert found.pop("totals") == {
        **dict.fromkeys(("finished", "failed", "cancelled", "refused", "resumed", "cut"), int),
        **dict.fromkeys(("travelled", "brought"), int),
        **dict.fromkeys(("prompt_tokens", "cached_tokens", "brought_tokens", "tokens"), int),
        "paused_s": float,
    }
    assert found.pop("history") == {"begun": [int], "failed": int, "losses": [int], "recoveries": histogram}
    assert found.pop("histograms") == {
        **dict.fromkeys(("queue", "first_token", "prefill", "between_tokens", "decode"), histogram),
        **dict.fromkeys(("per_token", "latency", "prompt_tokens", "answer_tokens"), histogram),
        "pauses": dict.fromkeys(("plan", "loss", "restart", "priority"), histogram),
    }
    assert found == {
        **dict.fromkeys(("reason", "failed", "split_shows", "model", "pack", "next_pack"), str),
        **dict.fromkeys(("collective", "bulk_collective", "collective_why", "not_kept", "not_parked"), str),
        **dict.fromkeys(("queued", "running", "epoch"), int),
        **dict.fromkeys(("ready", "asleep", "keeps_context"), bool),
        "kept_s": float,
        "links": [{"low": int, "high": int, "round_trip_s": float}],
    }


def test_admin_cluster_route_returns_the_cluster_state(server):
    answer = look(server)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    found = answer.json()
    assert (found["object"], found["model"]["name"], found["ready"]) == ("tpiedge.cluster", "babbler", True)
    assert [(one["name"], one["host"], one["state"]) for one in found["machines"]] == [
        ("master", "", "serving"),
        ("w-1", "attic", "serving"),
    ]
    assert found["machines"][1]["share"] == {"work": 0.625, "heads": 0.5, "ffn": 0.75}
    assert found["waiting"] == [{"name": "attic", "address": "192.0.2.7"}]
    assert found["events"] == [{"at": 1.7e9, "kind": "joined", "machine": "attic", "detail": ""}]
    assert found["requests"] == []


def test_unchanged_cluster_state_returns_304(server, service):
    tag, deadline = "", time.monotonic() + LIMIT_S
    # The rates are known a second after the first look.
    while (again := look(server, **{"If-None-Match": tag})).status_code == 200:
        assert time.monotonic() < deadline
        tag = again.headers["etag"]
    assert (again.status_code, again.content) == (304, b"")
    service.unavailable = "loading the weights"
    other = look(server, **{"If-None-Match": tag})
    assert other.status_code == 200
    assert (other.json()["ready"], other.json()["reason"]) == (False, "loading the weights")


def test_request_ended_by_administrator_gives_client_an_error(server, service):
    service.script = lambda generation: generation.say(5, 6)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = iter(client.completions.create(model="babbler", prompt="x", max_tokens=9, stream=True))
        next(stream)
        (line,) = look(server).json()["requests"]
        assert (line["state"], line["tokens"], line["max_tokens"]) == ("answering", 2, 9)
        ended = httpx.delete(f"{server.url}/admin/requests/{line['id']}", headers=ADMIN)
        assert ended.json() == {"id": line["id"], "deleted": True}
        with pytest.raises(openai.APIError, match="the administrator of this server ended the request"):
            list(stream)
    assert service.dismissed == [line["id"]]
    again = httpx.delete(f"{server.url}/admin/requests/{line['id']}", headers=ADMIN)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown_request")


def test_request_ended_before_sending_is_not_retried(server, service):
    service.script = lambda generation: service.dismiss(generation.request.id)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2, timeout=20) as client,
        pytest.raises(openai.PermissionDeniedError, match="the administrator"),
    ):
        client.completions.create(model="babbler", prompt="x", max_tokens=9)
    assert len(service.dismissed) == 1
    answers(service, "as ever")


@contextmanager
def running(server, key):
    body = {"model": "babbler", "prompt": "x", "max_tokens": 9, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", headers=bearer(key), json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def senders(server):
    return [one["sender"] for one in look(server).json()["requests"]]


def test_requests_show_their_key_name_but_never_the_key(serve, service, tmp_path):
    service.script = lambda generation: generation.say(5)
    file = tmp_path / "keys"
    file.write_text("phone: sk-phone\nsk-nameless\n")
    file.chmod(0o600)
    server = serve(key_file=file)
    with running(server, "sk-phone"), running(server, "sk-nameless"):
        assert senders(server) == [{"kind": "key", "name": "phone"}, {"kind": "key", "name": ""}]
        shown = look(server).text
        for key in ("sk-phone", "sk-nameless"):
            assert key not in shown
            assert hashlib.sha256(key.encode()).hexdigest() not in shown
        file.write_text("tablet: sk-tablet\nsk-nameless\n")
        assert httpx.get(f"{server.url}/v1/models", headers=bearer("sk-phone")).status_code == 401
        assert senders(server) == [{"kind": "former key", "name": ""}, {"kind": "key", "name": ""}]


def test_whatif_route_predicts_one_machine_more_or_less(server, service):
    def ask(query):
        return httpx.get(f"{server.url}/admin/whatif?{query}", headers=ADMIN)

    assert ask("without=attic").json() == {
        "now_s": 0.01,
        "then_s": 0.0125,
        "machines": 2,
        "takes_part": True,
        "why": "",
    }
    assert ask("more=1").status_code == 200
    assert ask("without=nobody").status_code == 404
    for query in ("", "more=2", "without=", "more=1&without=attic", "x=1"):
        answer = ask(query)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            400,
            "ask for one machine less, ?without=NAME, or for one more, ?more=1",
        )


def test_predictions_run_singly_with_a_time_limit(server, service, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(admin, "_PLAN_S", 0.2)
    monkeypatch.setattr(type(service), "what_if", lambda _self, _without: over.wait(LIMIT_S))
    try:
        late = httpx.get(f"{server.url}/admin/whatif?more=1", headers=ADMIN)
        assert late.status_code == 503
        assert late.json()["error"]["message"] == "the prediction takes more than 0 s"
        assert httpx.get(f"{server.url}/admin/whatif?more=1", headers=ADMIN).status_code == 429
    finally:
        over.set()
