"""Nothing keeps people from using the page, as far as axe can tell, in light and dark, on a desktop and a phone."""

import pytest

from tests.browsing.browser import Keys
from tests.http.conftest import answers

TEXT = """A **bold** word, `code`, [a link](https://example.org) and

# A heading

1. one
2. two

> quoted

| a | b |
|---|--:|
| c | d |

```python
def f(x: int) -> str:  # says it
    return "text" * x + str(3)
```
"""


@pytest.mark.parametrize("touch", [False, True], ids=["desktop", "phone"])
def test_chat_view_has_no_accessibility_flaws(browser, service, serve, touch):
    answers(service, TEXT)
    browser.shape(*((390, 844) if touch else (1200, 800)), touch=touch)
    browser.open(serve().url)
    assert browser.flaws() == []
    browser.say("Show me all that you have")
    browser.wait(lambda: browser.see(".facts") and browser.see(".hljs-keyword"))
    assert browser.flaws() == []
    browser.run("document.querySelector('.question .tools').style.opacity = 1")
    browser.click("Edit", ".question")
    assert browser.flaws() == []
    browser.click("Cancel")
    browser.click("Settings")
    browser.wait(lambda: browser.see("dialog[open]"))
    assert browser.flaws() == []
    browser.click("Done")
    if touch:
        browser.click("Show conversations")
    assert browser.flaws() == []
    browser.click("Rename “Show me all that you have”")
    browser.wait(lambda: browser.focused() == "New name")
    assert browser.flaws() == []
    browser.press(Keys.ESCAPE)
    browser.click("Delete “Show me all that you have”")
    browser.wait(lambda: browser.see("dialog[open]"))
    assert browser.flaws() == []
    browser.click("Delete", "dialog")


def test_error_states_have_no_accessibility_flaws(browser, serve):
    browser.open(serve(keys=["k"]).url)
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press("wrong\n")
    browser.wait(lambda: browser.see("dialog .error"))
    assert browser.flaws() == []
    browser.click("Cancel")
    browser.wait(lambda: browser.see(".problem"))
    assert browser.flaws() == []


def test_running_answer_has_no_accessibility_flaws(browser, service, url, words):
    browser.open(url)
    browser.say("Go")
    generation = service.generations.get(timeout=30)
    generation.say(*words("some text"))
    browser.wait_for_text(".answer", "some text")
    assert browser.flaws() == []
    generation.pause("waiting for dell-1")
    browser.wait_for_text(".progress", "dell-1")
    assert browser.flaws() == []
    generation.finish()
