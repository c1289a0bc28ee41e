import pytest

from tests.http.conftest import answers

KEY = "0123456789abcdef0123456789abcdef"


def test_page_works_in_a_browser_without_storage(forgetful_browser, service, serve):
    browser = forgetful_browser
    answers(service, "Yes.")
    browser.open(serve(keys=["sk-right"]).url)
    assert (
        browser.run("try { return localStorage.length } catch (error) { return error.name }")
        == "SecurityError"
    )
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.press("sk-right\n")
    browser.wait_for_text(".notice", "This browser stores nothing: conversations are lost")
    assert browser.flaws() == []
    browser.say("Well?")
    browser.wait_for_answers("Yes.")
    browser.click("Settings")
    browser.type("#set-seed", "4")
    browser.click("Done")
    browser.say("And now?")
    browser.wait_for_answers("Yes.", "Yes.")
    assert browser.texts(".conversations li a") == ["Well?"]
    assert browser.texts(".notice") == browser.texts(".notice, .problem")
    browser.reload()
    browser.wait(lambda: browser.see("dialog[open]"))
    assert not browser.texts(".conversations li a")


def test_key_in_the_address_is_used_and_removed_from_it(browser, service, serve):
    answers(service, "Yes.")
    url = serve(keys=[KEY]).url
    browser.open(url, f"/#key={KEY}")
    browser.say("Well?")
    browser.wait_for_answers("Yes.")
    assert not browser.see("dialog[open]")
    assert KEY not in browser.run("return location.href")
    browser.run("history.back()")
    browser.wait(lambda: browser.run("return location.hash") == "")
    assert KEY not in browser.run("return location.href")
    browser.reload()
    browser.say("And now?")  # in a new conversation, with the key that the tab keeps
    browser.wait_for_answers("Yes.")


@pytest.mark.parametrize("cancelled", [False, True])
def test_key_in_the_address_of_an_open_page_answers_its_question(browser, service, serve, cancelled):
    answers(service, "Yes.")
    browser.open(serve(keys=[KEY]).url)
    browser.wait(lambda: browser.see("dialog[open]"))
    if cancelled:
        browser.click("Cancel", "dialog")
        browser.wait(lambda: browser.see(".problem"))
    browser.run("location.hash = arguments[0]", f"key={KEY}")
    browser.wait(lambda: browser.see(".model") and not browser.see("dialog[open], .problem"))
    browser.say("Well?")
    browser.wait_for_answers("Yes.")
    assert KEY not in browser.run("return location.href")
