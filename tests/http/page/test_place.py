"""The reader's place in the page: what is seen of a talk, and that it is still there after a look at something else."""

import pytest

from tests.browsing.browser import Keys
from tests.http.conftest import answers

LIMIT_S = 30.0
LONG = "\n\n".join(f"{number}. word" for number in range(1, 61))
#: Of the scroller, from what is seen of it to its end.
BELOW = "const e = document.querySelector('.messages'); return e.scrollHeight - e.scrollTop - e.clientHeight"
TO_START = "document.querySelector('.messages').scrollTop = 0"
TYPED = "return document.querySelector('#message').value"


@pytest.fixture
def talk(browser, service, url):
    """Two long answers."""
    service.max_sequence = 4096
    answers(service, LONG)
    browser.open(url)
    for count in (1, 2):
        browser.say("Count")
        browser.wait(lambda count=count: len(browser.texts(".facts")) == count)
    return browser


@pytest.mark.parametrize("touch", [False, True], ids=["desktop", "phone"])
def test_the_window_itself_never_scrolls(talk, touch):
    talk.shape(*((390, 844) if touch else (1200, 800)), touch=touch)
    talk.draw()
    assert talk.run(
        "const e = document.querySelector('.messages'); return e.scrollHeight > 2 * e.clientHeight"
    )
    assert talk.outside() == [0, 0, 0]
    assert talk.run("return document.querySelector('#content').scrollHeight <= innerHeight")


def test_after_a_look_at_the_cluster_the_talk_is_there_again(talk):
    talk.type("#message", "and then")
    talk.click("Cluster")
    talk.wait(lambda: talk.see(".locked"))
    talk.click("Chat")
    talk.wait(lambda: talk.see("#message"))
    assert talk.texts(".question .said") == ["Count", "Count"]
    assert talk.run(TYPED) == "and then"
    talk.click("New chat")
    talk.wait(lambda: not talk.see(".question"))
    talk.click("Chat")  # the one that is shown
    talk.draw()
    assert not talk.see(".question")


def test_what_is_asked_is_seen(talk, service):
    service.script = lambda generation: None
    talk.run(TO_START)
    talk.wait(lambda: talk.see(".to-end"))
    talk.say("And more?")
    talk.wait(lambda: talk.see(".progress"))
    talk.wait(lambda: talk.run(BELOW) < 2)
    talk.wait(lambda: not talk.see(".to-end"))


def test_whoever_scrolls_away_stays_there_when_something_is_drawn_at_that_moment(talk):
    """The reader scrolls within the frame in which the page draws: before the page hears of it, its effects run."""
    talk.driver.execute_async_script(
        "const [done] = arguments, frame = requestAnimationFrame, e = document.querySelector('.messages');"
        "frame(() => { e.style.borderTop = '1px solid';"  # another size: drawn anew
        " setTimeout(() => frame(() => { e.scrollTop = 0; setTimeout(() => frame(() => frame(done)), 200) })) })"
    )
    assert talk.run("return document.querySelector('.messages').scrollTop") == 0
    talk.wait(lambda: talk.see(".to-end"))


def test_to_the_end_is_offered_only_where_there_is_more(talk, service, words):
    service.script = lambda generation: None
    talk.click("Another answer")
    generation = [service.generations.get(timeout=LIMIT_S) for _ in range(3)][-1]
    generation.say(*words("Short."))
    generation.finish("stop")
    talk.wait_for_text(".versions", "2 of 2")
    talk.click("Earlier version")
    talk.wait(lambda: talk.run(BELOW) >= 0 and len(talk.texts(".facts")) == 2)
    talk.run(TO_START)
    talk.wait(lambda: talk.see(".to-end"))
    talk.shape(1200, 8000)
    talk.wait(lambda: not talk.see(".to-end"))


def test_an_answer_that_runs_elsewhere_has_a_sign_in_the_list(talk, service):
    service.script = lambda generation: None
    talk.say("Again")
    generation = [service.generations.get(timeout=LIMIT_S) for _ in range(3)][-1]
    talk.click("New chat")
    talk.wait(lambda: talk.see(".conversations [role=img][aria-label='An answer is being made']"))
    assert talk.flaws() == []
    generation.finish("stop")
    talk.wait(lambda: not talk.see(".conversations [role=img]"))


def test_an_edit_is_sent_as_a_message_is(talk, service):
    talk.run("document.querySelector('.question .tools').style.opacity = 1")
    talk.click("Edit", ".question")
    talk.wait(lambda: talk.focused() == "Edit the message")
    answers(service, "Hm.")
    talk.press(Keys.CONTROL + "a", "One", Keys.SHIFT + Keys.ENTER, "Two", Keys.ENTER)
    talk.wait_for_answers("Hm.")
    assert talk.texts(".question .said") == ["One\nTwo"]
