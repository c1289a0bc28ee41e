"""A real cluster of three machines as its users see it: the master's picture and `tpiedge top`; before the page what a
newcomer does, a machine that is let in, and a kill in the middle of an answer."""

import json
import os
import re
import signal
from collections.abc import Callable

import openai
import pytest

from tests.browsing.browser import Browser
from tests.process.command import Ended, wait_for
from tests.process.conftest import PROMPT
from tests.process.serving.conftest import SLOW
from tests.process.serving.serving import START_S, Serving

LONG = 900
#: The demo model's stories are short: here they are as long as an answer may be, unless it is stopped.
_ENDLESS = """
const asked = window.fetch;
window.fetch = (address, options) => {
  if (!options?.body) return asked(address, options);
  const body = {...JSON.parse(options.body), ignore_eos: true};
  return asked(address, {...options, body: JSON.stringify(body)});
};
"""
#: What a screen reader is told from now on; a pause may be over before anybody looks.
_LISTENING = """
const status = document.querySelector(".messages-frame [role=status]");
window.said = [];
new MutationObserver(() => window.said.push(status.textContent))
  .observe(status, { characterData: true, childList: true, subtree: true });
"""
#: At one instant: the page is drawn anew all the time.
_STATES = """
const text = (card, selector) => card.querySelector(selector).innerText;
return [...document.querySelectorAll(".machine")].map((card) => [text(card, "h3"), text(card, ".pill")]);
"""


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    """The master and two workers, so slow that computing counts: all of them take part, whatever their round trips
    take, and no spare is about to, which would have an answer pause."""
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name, bytes_per_s=SLOW)
    return cluster


def code_of(cluster: Serving, name: str) -> str:
    shown = r"the code of this worker is (\S+);"
    wait_for(lambda: re.search(shown, cluster.workers[name].log), START_S)
    return str(re.findall(shown, cluster.workers[name].log)[-1])


def hosts(picture: dict) -> list[str]:
    return [one["host"] or one["name"] for one in picture["machines"] if one["state"] == "serving"]


def computes(machine: dict) -> bool:
    return bool(machine["step"]) and machine["step"]["compute_s"] > 0


@pytest.mark.thin
def test_cluster_state_and_top_show_a_running_answer(cluster: Serving, here: Callable[..., Ended]) -> None:
    of_master = {"TPIEDGE_STATE": str(cluster.state)}
    cluster.wait_ready(3)
    with cluster.streaming(PROMPT, LONG) as stream, cluster.crawling():
        # A step that ends just before a look was computed before the look before.
        picture = cluster.wait_until(lambda seen: all(map(computes, seen["machines"])), look=cluster.picture)
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
        cluster.wait_until(lambda seen: (seen["totals"]["tokens_per_s"] or 0) > 0, look=cluster.picture)

        seen = json.loads(here("top", "--json", **of_master).out)
        assert [one["id"] for one in seen["requests"]] == [request["id"]]
        plain = here("top", "--once", **of_master)
        assert (plain.status, plain.err) == (0, "")
        assert request["id"] in plain.out
        assert stream.ended_at == 0.0, "the answer was too short"

        ended = cluster.administer("DELETE", f"requests/{request['id']}")
        assert ended.json() == {"id": request["id"], "deleted": True}
        stream.join(START_S)
    assert isinstance(stream.error, openai.APIError)
    assert "the administrator of this server ended the request" in str(stream.error)
    cluster.wait_until(lambda seen: not seen["requests"], look=cluster.picture)


@pytest.mark.thin
def test_page_generates_and_regenerates_an_answer(browser: Browser, cluster: Serving) -> None:
    browser.open(cluster.url)
    browser.wait_for_text(".model", "demo")
    browser.click("Settings")
    browser.type("#set-seed", "7")
    browser.type("#set-max_tokens", "40")
    browser.click("Done")
    browser.say("Tell me a story")
    browser.wait(lambda: browser.see(".facts"))
    (story,) = browser.answers()
    assert story
    assert "per step" in browser.text(".facts")
    browser.click("Regenerate")
    browser.wait_for_text(".answer .versions", "2 of 2")
    browser.wait_for_answers(story)
    browser.reload()
    browser.wait_for_answers(story)


def test_page_answer_survives_killed_workers_and_can_be_stopped(browser: Browser, cluster: Serving) -> None:
    browser.open(cluster.url)
    browser.run(_ENDLESS)
    epoch = cluster.wait_until(lambda status: status["ready"])["epoch"]
    with cluster.crawling():
        browser.say("Tell me a story")
        browser.wait_for_text(".progress", "tokens/s")
        browser.run(_LISTENING)
        for worker in cluster.workers.values():
            os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        browser.wait(lambda: any("Waiting for " in text for text in browser.run("return window.said")))
        for name in cluster.workers:  # not before, or the pause may be over before the page is drawn
            cluster.start_worker(name, token=False, bytes_per_s=SLOW)
        (before,) = browser.answers()
        cluster.wait_until(lambda status: status["ready"] and status["epoch"] > epoch)
    with cluster.crawling():  # the machines that go on with it
        browser.wait(lambda: len(browser.answers()[0]) > len(before) + 40, START_S)
        assert browser.answers()[0].startswith(before.rstrip())
        browser.click("Stop")
        browser.wait_for_text(".answer", "Stopped.")
    cluster.wait_until(lambda status: status["running"] == 0)


def test_page_approves_and_drains_a_machine(browser: Browser, cluster: Serving) -> None:
    """The view of the cluster, with the key typed."""
    browser.open(cluster.url)
    browser.click("Cluster")
    browser.click("Enter key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.type("dialog input", cluster.secret)
    browser.click("Use this key", "dialog")
    browser.wait(lambda: browser.see(".machine"))

    def state(name: str) -> str:
        """Returns the text of that machine's card; "" without one."""
        return str(dict(browser.run(_STATES)).get(name, ""))

    browser.wait(lambda: state("master") == "serving")
    cluster.start_worker("carol", token=False, bytes_per_s=SLOW)
    browser.wait_for_text(".waiting li", "carol")
    browser.type("#code", code_of(cluster, "carol") + "\n")
    browser.wait(lambda: state("carol") in ("serving", "spare", "loading"))
    browser.wait_for_text(".events li", "carol joined")
    browser.click("Drain carol")
    browser.click("Drain", "dialog")
    browser.wait(lambda: state("carol") == "drained")
    browser.wait_for_text(".events li", "carol was drained")
    assert cluster.workers["carol"].process.end() == 0
    browser.wait_for_text(".events li", "carol left")
