"""What the page tells before anybody has to find it out: that nobody would answer, what would not fit, whose settings
these are, and nothing that is no longer so."""

import pytest

from tests.browsing.browser import Keys
from tests.http.conftest import answers

LIMIT_S = 30.0
SEED = "return document.querySelector('#set-seed').value"
OWN = ".talk-head [title='They are others than a new chat begins with.']"


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


def test_a_try_that_gave_nothing_is_no_version(page, service):
    service.unavailable = "too few machines"
    page.say("Well?")
    page.wait_for_text(".answer", "No answer: too few machines")
    page.wait(lambda: page.see(".notice"))
    service.unavailable = ""
    answers(service, "Yes.")
    page.click("Try again")
    page.wait_for_answers("Yes.")
    assert not page.see(".versions")
    page.click("Another answer")
    page.wait_for_text(".versions", "2 of 2")


def test_what_does_not_fit_is_made_shorter(page, service):
    page.paste("word " * 2000)
    page.say("!")
    page.wait_for_text(".answer", "512 tokens fit")
    answers(service, "Yes.")
    page.click("Edit", ".answer")
    page.wait(lambda: page.focused() == "Edit the message")
    page.press(Keys.CONTROL + "a", "Well?", Keys.ENTER)
    page.wait_for_answers("Yes.")


def test_settings_that_are_left_by_escape_are_as_before(page):
    page.click("Settings")
    page.type("#set-seed", "4" + Keys.TAB)
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.see("dialog"))
    assert not page.see(OWN)
    page.click("Settings")
    assert page.run(SEED) == ""
    page.type("#set-seed", "5" + Keys.ENTER)
    page.wait(lambda: page.see(OWN))
    assert page.flaws() == []
    page.click("Settings")
    assert page.run(SEED) == "5"
    page.wait_for_text("dialog", "They are others than a new chat begins with.")


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


def test_a_key_that_was_not_typed(browser, serve):
    browser.open(serve(keys=["sk-right"]).url)
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press(Keys.ESCAPE)
    browser.wait_for_text(".problem", "whoever runs this server has one")
    browser.click("Type the key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press("sk-right", Keys.ENTER)
    browser.wait(lambda: browser.see(".model") and not browser.see(".problem"))
