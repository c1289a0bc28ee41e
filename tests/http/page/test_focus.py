"""Where the keyboard is after something that had the focus is gone."""

import pytest

from tests.browsing.browser import Keys
from tests.http.conftest import answers


@pytest.fixture
def page(browser, service, url):
    answers(service, "One.")
    browser.open(url)
    browser.say("Say something")
    browser.wait_for_answers("One.")
    return browser


@pytest.fixture
def goes_to(page):
    """That the focus gets there, and stays."""

    def wait(name):
        page.wait(lambda: page.focused() == name)
        page.draw()
        assert page.focused() == name

    return wait


def press_on(page, name, within="body"):
    """By the keyboard, as who does not use a mouse."""
    page.focus(name, within)
    page.press(Keys.ENTER)


def test_another_answer_and_between_versions(page, service, goes_to):
    answers(service, "Two.")
    press_on(page, "Another answer")
    goes_to("Message")
    page.wait_for_answers("Two.")
    first, second = (service.generations.get(timeout=30).request.prompt_ids for _ in range(2))
    assert service.tokenizer.decode(list(second)) == "<user>Say something"
    assert first == second
    assert page.text(".versions") == "2 of 2"
    press_on(page, "Earlier version")
    page.wait_for_answers("One.")
    goes_to("Earlier version")
    page.press(Keys.ENTER)  # there is none earlier
    goes_to("Earlier version")
    press_on(page, "Later version")
    page.wait_for_answers("Two.")
    goes_to("Later version")


def test_after_a_deletion(page, goes_to):
    press_on(page, "New chat")
    page.wait(lambda: not page.answers())
    page.say("Something else")
    page.wait_for_answers("One.")
    press_on(page, "Delete “Say something”")
    page.wait(lambda: page.see("dialog"))
    press_on(page, "Cancel", "dialog")
    goes_to("Delete “Say something”")
    page.press(Keys.ENTER)
    page.wait(lambda: page.see("dialog"))
    press_on(page, "Delete", "dialog")
    goes_to("New chat")
    press_on(page, "Delete “Something else”")
    page.wait(lambda: page.see("dialog"))
    press_on(page, "Delete", "dialog")
    goes_to("Message")
