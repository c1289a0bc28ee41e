"""What the page tells before anybody has to find it out: that nobody would answer, what would not fit, whose settings
these are, and nothing that is no longer so."""

import pytest

LIMIT_S = 30.0


@pytest.fixture
def page(browser, url):
    browser.open(url)
    return browser


def test_that_the_cluster_is_not_ready(browser, service, url):
    service.unavailable = "too few machines"
    browser.open(url)
    browser.wait_for_text(".notice", "The cluster cannot answer now: the cluster cannot answer yet")
    # One that has lost a machine takes questions still, below which it says that the answer pauses.
    assert "What is asked meanwhile waits, or is refused." in browser.text(".notice")
    assert browser.flaws() == []
    service.unavailable = ""
    browser.wait(lambda: not browser.see(".notice"))


def test_what_is_told_to_who_cannot_see_is_true_still(page, service, words):
    said = "return document.querySelector('.messages-frame [role=status]').textContent"
    service.unavailable = "too few machines"
    page.say("Well?")
    page.wait(lambda: page.run(said) == "No answer: too few machines")
    service.unavailable = ""
    page.click("Try again")
    generation = service.generations.get(timeout=LIMIT_S)
    page.wait(lambda: page.run(said) == "")
    generation.pause("waiting for dell-1")
    page.wait(lambda: "waiting for dell-1" in page.run(said))
    generation.resume(1.5)
    generation.say(*words("first"))
    page.wait(lambda: page.run(said) == "")
    generation.finish("stop")
    page.wait_for_answers("first")
