"""The page before a real cluster of three machines: what a newcomer does, and a kill in the middle of an answer."""

import os
import signal

import pytest

from tests.browsing.browser import Browser, Keys
from tests.process.serving.serving import START_S, Serving

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


@pytest.fixture(scope="module")
def cluster(slow_trio: Serving) -> Serving:
    """All of them take part, whatever their round trips take: no spare is about to, which would have an answer
    pause."""
    return slow_trio


@pytest.fixture(scope="module")
def url(cluster: Serving) -> str:
    return cluster.url


@pytest.mark.thin
def test_a_story_is_asked_for_and_asked_for_again(browser: Browser, url: str) -> None:
    browser.open(url)
    assert browser.text(".model") == "demo"
    browser.click("Settings")
    browser.type("#set-seed", "7")
    browser.type("#set-max_tokens", "40")
    browser.click("Done")
    browser.say("Tell me a story")
    browser.wait(lambda: browser.see(".facts"))
    (story,) = browser.answers()
    assert story
    assert "per step" in browser.text(".facts")
    browser.click("Another answer")
    browser.wait_for_text(".answer .versions", "2 of 2")
    browser.wait_for_answers(story)
    browser.reload()
    browser.wait_for_answers(story)


def test_an_answer_is_stopped(browser: Browser, cluster: Serving, url: str) -> None:
    browser.open(url)
    browser.run(_ENDLESS)
    with cluster.crawling():
        browser.say("Tell me a story")
        browser.wait_for_text(".progress", "tokens/s")
        browser.press(Keys.ESCAPE)
        browser.wait_for_text(".answer", "Stopped.")
    cluster.wait_until(lambda status: status["running"] == 0)


def test_a_worker_is_killed_in_the_middle_of_an_answer(browser: Browser, cluster: Serving, url: str) -> None:
    browser.open(url)
    browser.run(_ENDLESS)
    epoch = cluster.wait_until(lambda status: status["ready"])["epoch"]
    with cluster.crawling():
        browser.say("Tell me a story")
        browser.wait_for_text(".progress", "tokens/s")
        browser.run(_LISTENING)
        serving = [node["host"] for node in cluster.status()["nodes"] if node["rank"]]
        killed = next(worker for name, worker in cluster.workers.items() if name in serving)
        os.killpg(killed.process.pid, signal.SIGKILL)
        browser.wait(lambda: any("The answer pauses: " in text for text in browser.run("return window.said")))
        (before,) = browser.answers()
        cluster.wait_until(lambda status: status["ready"] and status["epoch"] > epoch)
    with cluster.crawling():  # the machines that go on with it
        browser.wait(lambda: len(browser.answers()[0]) > len(before) + 100, START_S)
        assert browser.answers()[0].startswith(before.rstrip())
        browser.click("Stop")
        browser.wait_for_text(".answer", "Stopped.")
    cluster.wait_until(lambda status: status["running"] == 0)
