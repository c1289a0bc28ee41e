from tests.http.conftest import answers

LONG = "\n\n".join(f"{number}. word" for number in range(1, 61))


def test_the_window_itself_never_scrolls(browser, service, url):
    service.max_sequence = 4096
    answers(service, LONG)
    browser.open(url)
    for count in (1, 2):
        browser.say("Count")
        browser.wait(lambda count=count: len(browser.texts(".facts")) == count)
    for width, height, phone in ((1200, 800, False), (390, 844, True)):
        browser.shape(width, height, touch=phone)
        browser.draw()
        assert browser.run(
            "const e = document.querySelector('.messages'); return e.scrollHeight > 2 * e.clientHeight"
        )
        assert browser.outside() == [0, 0, 0]
        assert browser.run("return document.querySelector('#content').scrollHeight <= innerHeight")
