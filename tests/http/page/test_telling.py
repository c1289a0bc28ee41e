LIMIT_S = 30.0


def test_screen_reader_status_stays_up_to_date(browser, service, url, words):
    said = "return document.querySelector('.messages-frame [role=status]').textContent"
    service.unavailable = "too few machines"
    browser.open(url)
    browser.wait_for_text(".notice", "Not ready: the cluster cannot answer yet")
    # One that has lost a machine takes questions still, below which it says that the answer pauses.
    assert "Messages wait meanwhile, or are refused." in browser.text(".notice")
    assert browser.flaws() == []
    browser.say("Well?")
    browser.wait(lambda: browser.run(said) == "No answer: too few machines")
    service.unavailable = ""
    browser.wait(lambda: not browser.see(".notice"))
    browser.click("Try again")
    generation = service.generations.get(timeout=LIMIT_S)
    browser.wait(lambda: browser.run(said) == "")
    generation.pause("waiting for dell-1")
    browser.wait(lambda: "waiting for dell-1" in browser.run(said))
    generation.resume(1.5)
    generation.say(*words("first"))
    browser.wait(lambda: browser.run(said) == "")
    generation.finish("stop")
    browser.wait_for_answers("first")
    service.unavailable = "dell-1 is gone"  # of a page that was loaded before
    browser.say("Still?")
    browser.wait(lambda: browser.run(said) == "No answer: dell-1 is gone")
