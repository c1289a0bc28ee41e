"""The cluster as its users see it: the master's picture, `tpiedge top`, and how an administrator ends a request."""

import json
import time
from collections.abc import Callable

import openai
import pytest

from tests.process.command import run_command
from tests.process.serving.conftest import PROMPT
from tests.process.serving.serving import START_S, Serving

LONG = 900
POLL_S = 0.05


@pytest.fixture(scope="module")
def cluster(slow_trio: Serving) -> Serving:
    return slow_trio


def until(cluster: Serving, holds: Callable[[dict], bool], limit_s: float = START_S) -> dict:
    deadline = time.monotonic() + limit_s
    while not holds(picture := cluster.picture()):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {picture}\n{cluster.logs()}"
        time.sleep(POLL_S)
    return picture


def top(cluster: Serving, *words: object):
    return run_command("top", *words, TPIEDGE_STATE=str(cluster.state))


def hosts(picture: dict) -> list[str]:
    return [one["host"] or one["name"] for one in picture["machines"] if one["state"] == "serving"]


def computes(machine: dict) -> bool:
    return bool(machine["step"]) and machine["step"]["compute_s"] > 0


@pytest.mark.thin
def test_what_the_machines_do_while_an_answer_runs(cluster: Serving) -> None:
    with cluster.streaming(PROMPT, LONG) as stream, cluster.crawling():
        # A step that ends just before a look was computed before the look before.
        picture = until(cluster, lambda seen: all(map(computes, seen["machines"])))
        assert sorted(hosts(picture)) == ["ann", "bob", "master"]
        for machine in picture["machines"]:
            memory = machine["memory"]
            assert memory["pinned_bytes"] > 0
            assert memory["kv_reserved_bytes"] >= memory["kv_bytes"] > 0
            assert memory["budget_bytes"] >= memory["planned_bytes"] > memory["pinned_bytes"]
        for machine in picture["machines"][1:]:
            assert machine["link"]["round_trip_s"] > 0
        assert sum(machine["share"]["heads"] for machine in picture["machines"]) == pytest.approx(1, abs=0.01)
        (request,) = picture["requests"]
        assert (request["state"], request["max_tokens"]) == ("answering", LONG)
        assert picture["totals"]["kv_pages_used"] > 0
        until(cluster, lambda seen: (seen["totals"]["tokens_per_s"] or 0) > 0)

        seen = json.loads(top(cluster, "--json").out)
        assert [one["id"] for one in seen["requests"]] == [request["id"]]
        plain = top(cluster, "--once")
        assert (plain.status, plain.err) == (0, "")
        assert request["id"] in plain.out
        assert stream.ended_at == 0.0, "the answer was too short"

        ended = cluster.administer("DELETE", f"requests/{request['id']}")
        assert ended.json() == {"id": request["id"], "deleted": True}
        stream.join(START_S)
    assert isinstance(stream.error, openai.APIError)
    assert "the administrator of this server ended the request" in str(stream.error)
    until(cluster, lambda seen: not seen["requests"])
