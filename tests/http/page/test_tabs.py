import pytest

from tests.http.conftest import answers

LIMIT_S = 30.0
LISTED = ".conversations li a"
#: So that each tab changes the conversation as it was before the other did.
DEAF = "BroadcastChannel.prototype.postMessage = () => {};"


@pytest.fixture
def here(browser):
    """The part of the address that names what is shown."""
    return lambda: browser.run("return '/' + location.hash")


def rename(browser, before, after):
    browser.click(f"Rename “{before}”")
    browser.wait(lambda: browser.focused() == "New name")
    browser.press(after, "\n")
    browser.wait(lambda: browser.texts(LISTED) == [after])


def test_messages_of_one_tab_appear_in_another(browser, service, url):
    answers(service, "Hm.")
    browser.open(url)
    with browser.second_tab(url) as change:
        change()
        browser.say("Hello")
        browser.wait_for_answers("Hm.")
        change()
        browser.wait_for_text(".conversations li", "Hello")
        browser.click("Hello")
        browser.wait_for_answers("Hm.")


@pytest.mark.parametrize("duplicated", [False, True])
def test_message_in_one_tab_survives_an_answer_in_another(browser, service, url, words, here, duplicated):
    browser.open(url)
    browser.say("First")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.say(*words("one"))
    browser.wait_for_text(".answer", "one")
    answers(service, "Two.")
    with browser.second_tab(url, here(), duplicated=duplicated) as change:
        browser.wait_for_text(".answer", "In progress in another tab, unless you closed it.")
        browser.say("Second")
        browser.wait(lambda: browser.answers()[1:] == ["Two."])
        rename(browser, "First", "Both")
        change()
        browser.wait(lambda: browser.texts(LISTED) == ["Both"])
        browser.wait(lambda: browser.answers() == ["one", "Two."])
        generation.say(*words(" and a half"))
        generation.finish("stop")
        browser.wait_for_answers("one and a half", "Two.")
        change()
        browser.wait_for_answers("one and a half", "Two.")
    browser.reload()
    browser.wait_for_answers("one and a half", "Two.")
    assert browser.texts(".question .said") == ["First", "Second"]
    assert browser.texts(LISTED) == ["Both"]


def test_tabs_without_broadcasts_lose_no_messages(browser, service, url, here):
    answers(service, "Hm.")
    browser.open(url)
    browser.say("Begin")
    browser.wait_for_answers("Hm.")
    browser.run(DEAF)
    with browser.second_tab(url, here()) as change:
        browser.wait_for_answers("Hm.")
        browser.run(DEAF)
        rename(browser, "Begin", "Named")
        browser.say("There")
        browser.wait_for_answers("Hm.", "Hm.")
        change()
        answers(service, "Ah.")
        browser.say("Here")
        browser.wait_for_answers("Hm.", "Ah.")
        browser.wait(lambda: browser.texts(LISTED) == ["Named"])
    browser.reload()
    browser.wait_for_answers("Hm.", "Ah.")
    assert browser.texts(LISTED) == ["Named"]
    browser.wait_for_text(".question .versions", "2 of 2")
    browser.click("Previous version", ".question:nth-of-type(3)")
    browser.wait_for_answers("Hm.", "Hm.")
    assert browser.texts(".question .said") == ["Begin", "There"]
