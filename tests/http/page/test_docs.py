"""The description of the API, in a real browser."""

import httpx


def test_docs_are_readable_without_key_or_script(browser, serve):
    server = serve(keys=["k"])
    answer = httpx.get(f"{server.url}/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    browser.driver.get(f"{server.url}/docs")
    assert "POST /v1/chat/completions" in browser.text("nav")
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert "default 0.8" in browser.text("section[id='post-/v1/chat/completions']")
    browser.shape(390, 844, touch=True)
    assert browser.flaws() == []
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "no line is too wide"
