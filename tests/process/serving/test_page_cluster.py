"""The page's view of a real cluster: three machines, one more that is let in by its code and drained again, and a kill
in the middle of an answer."""

import os
import re
import signal

import pytest

from tests.browsing.browser import Browser
from tests.process.command import wait_for
from tests.process.serving.conftest import PROMPT, SLOW
from tests.process.serving.serving import START_S, Serving, rank_of
from tests.process.serving.test_top import LONG


@pytest.fixture(scope="module")
def cluster(slow_trio: Serving) -> Serving:
    return slow_trio


@pytest.fixture
def view(browser: Browser, cluster: Serving) -> Browser:
    """Open, with the key typed."""
    browser.open(cluster.url)
    browser.run("sessionStorage.clear()")  # the key of the test before
    browser.click("Cluster")
    browser.click("Type the key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.type("dialog input", cluster.secret)
    browser.click("Use this key", "dialog")
    browser.wait(lambda: browser.see(".machine"))
    return browser


#: At one instant: the page is drawn anew all the time.
_STATES = """
const text = (card, selector) => card.querySelector(selector).innerText;
return [...document.querySelectorAll(".machine")].map((card) => [text(card, "h3"), text(card, ".pill")]);
"""


def state(view: Browser, name: str) -> str:
    """What the card of that machine says; empty where there is none."""
    return dict(view.run(_STATES)).get(name, "")


def code_of(cluster: Serving, name: str) -> str:
    """That its screen shows."""
    found: list[str] = []

    def shown() -> bool:
        found[:] = re.findall(r"the code of this worker is (\S+);", cluster.workers[name].log)
        return bool(found)

    wait_for(shown, START_S)
    return found[-1]


@pytest.mark.thin
def test_what_three_machines_do_while_an_answer_runs(view: Browser, cluster: Serving) -> None:
    assert sorted(view.texts(".machine h3")) == ["ann", "bob", "master"]
    assert set(view.texts(".machine .pill")) == {"serves"}
    with cluster.streaming(PROMPT, LONG), cluster.crawling():
        view.wait(lambda: sum("Time of a step" in text for text in view.texts(".machine")) == 3)
        view.wait_for_text(".requests td", "answers")
        assert view.texts(".requests .sender") == ["127.0.0.1"]
        assert [("Links to other workers" in text) for text in view.texts(".machine")].count(True) == 2
        (request,) = view.texts(".requests tbody th")
        view.click(f"End {request}")
        view.click("End it", "dialog")
        view.wait_for_text("body", "No request runs or waits.")


def test_a_machine_is_let_in_by_its_code_and_drained(view: Browser, cluster: Serving) -> None:
    cluster.start_worker("carol", token=False, bytes_per_s=SLOW)
    view.wait_for_text(".waiting li", "carol")
    view.type("#code", code_of(cluster, "carol") + "\n")
    view.wait(lambda: state(view, "carol") in ("serves", "spare", "gets ready"))
    view.wait_for_text(".events li", "carol joined")
    view.wait(lambda: not view.see(".waiting"))
    view.click("Drain carol")
    view.click("Drain", "dialog")
    view.wait(lambda: state(view, "carol") == "drained")
    view.wait_for_text(".events li", "carol was drained")
    assert cluster.workers["carol"].process.end() == 0
    view.wait_for_text(".events li", "carol left")


def test_a_kill_in_the_middle_of_an_answer_is_seen_live(view: Browser, cluster: Serving) -> None:
    cluster.wait_until(lambda status: status["ready"] and rank_of(status, "bob") is not None)
    with cluster.streaming(PROMPT, LONG) as stream:
        with cluster.crawling():
            view.wait_for_text(".requests td", "answers")
            os.killpg(cluster.workers["bob"].process.pid, signal.SIGKILL)
            view.wait(lambda: state(view, "bob") == "away")
            view.wait_for_text(".events li", "bob was lost")
            view.wait_for_text(".events li", "answers go on")
        stream.join(START_S)
    assert stream.error is None
    cluster.start_worker("bob", token=False, bytes_per_s=SLOW)
    view.wait(lambda: state(view, "bob") in ("serves", "gets ready", "spare"))
