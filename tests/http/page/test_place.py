import pytest

from tests.http.conftest import answers

LONG = "\n\n".join(f"{number}. word" for number in range(1, 61))


@pytest.fixture
def talk(browser, service, url):
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
