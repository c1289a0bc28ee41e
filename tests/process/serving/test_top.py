"""The cluster as its users see it: the master's picture, `tpiedge top`, and how an administrator ends a request."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pexpect
import pyte
import pytest

from tests.process.command import COMMAND, end_terminal, run_command
from tests.process.serving.conftest import PROMPT
from tests.process.serving.serving import START_S, Serving

LONG = 900
POLL_S = 0.05
COLUMNS, LINES = 110, 40


@pytest.fixture(scope="module")
def cluster(slow_trio: Serving) -> Serving:
    return slow_trio


def until(cluster: Serving, holds: Callable[[dict], bool], limit_s: float = START_S) -> dict:
    """The first picture that it holds of."""
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


def test_what_all_machines_do_in_one_step(cluster: Serving) -> None:
    with cluster.streaming(PROMPT, LONG) as stream, cluster.crawling():
        seen = until(cluster, lambda seen: seen["timeline"] and seen["machines"][1]["sent_bytes_per_s"])
        timeline = seen["timeline"]
        assert [one["rank"] for one in timeline["machines"]] == [0, 1, 2]
        assert {one["host"] or one["name"] for one in timeline["machines"]} == {"master", "ann", "bob"}
        for machine in timeline["machines"]:
            assert machine["compute_s"] > 0
            edges = [edge for part in machine["spans"].values() for span in part for edge in span]
            assert 0 <= min(edges) < max(edges) <= timeline["took_s"]
        until(cluster, lambda later: later["timeline"]["step"] > timeline["step"])
        plain = top(cluster, "--once")
        assert "(# compute, . wait, ~ network, d disk)" in plain.out
        (request,) = cluster.picture()["requests"]
        cluster.administer("DELETE", f"requests/{request['id']}")
        stream.join(START_S)


def test_who_waits_for_a_long_prompt_hears_how_far_it_is_read(cluster: Serving) -> None:
    """However quick the machine is: the prompts are different ones, until one takes long enough."""
    deadline, heard, number = time.monotonic() + START_S, False, 0
    with cluster.crawling():
        while not heard:
            assert time.monotonic() < deadline, "no prompt took long enough"
            number += 1
            body = {
                "model": cluster.model,
                "prompt": f"{number} times. " + PROMPT * 40,
                "max_tokens": 1,
                "stream": True,
            }
            url = f"{cluster.url}/v1/completions"
            with httpx.stream("POST", url, json=body, timeout=START_S, trust_env=False) as answer:
                assert answer.status_code == 200, answer.read()
                heard = any(line.startswith(": reading ") for line in answer.iter_lines())


def test_where_nothing_happens_nothing_is_sent(cluster: Serving) -> None:
    until(
        cluster, lambda seen: all(one["disk"]["spare_ranges"] == "complete" for one in seen["machines"][1:])
    )
    assert all(one["disk"]["held_bytes"] for one in cluster.picture()["machines"][1:])
    deadline = time.monotonic() + START_S
    tag = ""
    while (answer := cluster.administer("GET", "cluster", {"If-None-Match": tag})).status_code != 304:
        assert time.monotonic() < deadline
        tag = answer.headers["etag"]
        time.sleep(POLL_S)
    assert answer.content == b""


def test_what_the_planner_predicts(cluster: Serving) -> None:
    cluster.wait_ready(3)
    less = cluster.administer("GET", "whatif?without=bob").raise_for_status().json()
    more = cluster.administer("GET", "whatif?more=1").raise_for_status().json()
    assert (less["takes_part"], less["machines"], less["why"]) == (True, 2, "")
    assert less["then_s"] > less["now_s"] > 0
    assert more["then_s"] > 0
    assert cluster.administer("GET", "whatif?without=nobody").status_code == 404


def _environment() -> dict[str, str]:
    """The terminal alone says how large it is: readline, where the tests' own process has it, told its children so."""
    return {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "LINES")} | {
        "TERM": "xterm"
    }


class Screen:
    """`tpiedge top` on a terminal."""

    def __init__(self, cluster: Serving) -> None:
        self.child = pexpect.spawn(
            COMMAND,
            ["top", "--state", str(cluster.state)],
            env=_environment(),
            dimensions=(LINES, COLUMNS),
        )
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)

    def until(self, *words: str) -> None:
        """Until all of them are to be seen."""
        deadline = time.monotonic() + START_S
        while not all(word in "\n".join(self._screen.display) for word in words):
            assert time.monotonic() < deadline, "\n".join(self._screen.display)
            with contextlib.suppress(pexpect.TIMEOUT):
                self._stream.feed(self.child.read_nonblocking(65_536, timeout=0.1))

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        self.child.expect(pexpect.EOF, timeout=START_S)
        self.child.wait()
        return self.child.exitstatus


@pytest.fixture
def screen(cluster: Serving) -> Iterator[Screen]:
    found = Screen(cluster)
    yield found
    end_terminal(found.child)


def test_the_key_is_printed_and_ctrl_c_ends_the_command(cluster: Serving, screen: Screen) -> None:
    printed = run_command("nodes", "key", TPIEDGE_STATE=str(cluster.state))
    assert printed.out == f"{cluster.secret}\n"
    screen.until("demo: ready")
    screen.child.sendintr()
    assert screen.ended() == 0


def test_a_loss_is_seen_live_and_q_ends_the_command(cluster: Serving, screen: Screen) -> None:
    screen.until("demo: ready", "ann", "bob", "rank 2", "q ends")
    cluster.workers["bob"].process.end()
    screen.until("bob left", "answers go on")
    cluster.start_worker("bob", token=False)
    cluster.wait_ready(3)
    screen.until("rank 2")
    screen.child.send("q")
    assert screen.ended() == 0
    kinds = [event["kind"] for event in cluster.picture()["events"]]
    assert kinds.index("joined") < kinds.index("left")
    assert httpx.get(f"{cluster.url}/admin/cluster", trust_env=False, timeout=START_S).status_code == 401
