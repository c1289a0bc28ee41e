LIMIT_S = 30.0


def test_screen_reader_status_stays_up_to_date(browser, service, url, words):
    looked = (
        "return performance.getEntriesByName(new URL('ready', location.href).href)"
        ".filter((entry) => entry.responseStatus === 503).length"
    )
    said = "return document.querySelector('.messages-frame [role=status]').textContent"
    service.unavailable = "too few machines"
    browser.open(url)
    browser.wait_for_text(".notice", "Not ready: the cluster cannot answer yet")
    assert browser.flaws() == []
    browser.say("Well?")
    browser.wait(lambda: browser.run(said) == "No answer: too few machines")
    service.unavailable = ""
    browser.wait(lambda: not browser.see(".notice"))
    browser.wait_for_text(".answer", "No answer then: too few machines. The model is ready now.")
    assert not browser.see(".error")
    browser.click("Try again")
    generation = service.generations.get(timeout=LIMIT_S)
    browser.wait(lambda: browser.run(said) == "")
    generation.pause("waiting for dell-1 (stopped)")
    browser.wait(lambda: browser.run(said) == "Waiting for dell-1 (stopped). Your question is kept.")
    service.unavailable = "no plan"  # of which the answer says more
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")
    browser.wait(lambda: browser.run(looked) > 0)
    browser.draw()
    assert not browser.see(".notice")
    service.unavailable = ""
    generation.resume(1.5)
    generation.say(*words("first"))
    browser.wait(lambda: browser.run(said) == "")
    generation.finish("stop")
    browser.wait_for_answers("first")
    service.unavailable = "dell-1 is gone"  # of a page that was loaded before
    browser.say("Still?")
    browser.wait(lambda: browser.run(said) == "No answer: dell-1 is gone")


def test_page_says_that_another_model_is_first_or_none_in_memory(browser, service, url, words):
    service.asleep = True
    browser.open(url)
    browser.wait_for_text(".notice", "The model is loaded with your question.")
    assert not browser.see(".problem")
    assert browser.flaws() == []
    browser.say("Well?")
    generation = service.generations.get(timeout=LIMIT_S)
    generation.pause("phi is served first")
    browser.wait_for_text(".progress", "phi is served first. Your question is kept.")
    assert not browser.see(".notice")
    service.asleep = False
    generation.say(*words("Yes."))
    generation.finish("stop")
    browser.wait_for_answers("Yes.")
    browser.wait(lambda: not browser.see(".notice"))
