from tests.http.conftest import answers


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
