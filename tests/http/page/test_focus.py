"""The focus goes to a fitting element after the focused one is gone."""

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
    """Returns a check that the focus gets to an element and stays there."""

    def wait(name):
        page.wait(lambda: page.focused() == name)
        page.draw()
        assert page.focused() == name

    return wait


def press_on(page, name, within="body"):
    """Presses a button by the keyboard, like a user without a mouse."""
    page.focus(name, within)
    page.press(Keys.ENTER)


def test_focus_moves_after_regenerate_and_version_change(page, service, goes_to):
    answers(service, "Two.")
    press_on(page, "Regenerate")
    goes_to("Message")
    page.wait_for_answers("Two.")
    first, second = (service.generations.get(timeout=30).request.prompt_ids for _ in range(2))
    assert service.tokenizer.decode(list(second)) == "<user>Say something"
    assert first == second
    assert page.text(".versions") == "2 of 2"
    assert page.flaws() == []
    press_on(page, "Previous version")
    page.wait_for_answers("One.")
    goes_to("Previous version")
    page.press(Keys.ENTER)  # the first version has no earlier one
    goes_to("Previous version")
    press_on(page, "Next version")
    page.wait_for_answers("Two.")
    goes_to("Next version")


def test_focus_moves_after_deleting_a_conversation(page, goes_to):
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
