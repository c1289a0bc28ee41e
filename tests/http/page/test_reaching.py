import pytest

from tpiedge.api.limits import Limits
from tpiedge.api.records import RecordFolder

LIMIT_S = 30.0
#: The page waits for a minute as for half a second, from the next word on.
HURRY = """
const later = window.setTimeout;
window.setTimeout = (act, ms, ...values) => later(act, ms >= 30_000 ? ms / 120 : ms, ...values);
window.takeYourTime = () => { window.setTimeout = later; };
"""
#: What stands below an answer whose connection is not made yet.
ASKING = "Waiting for the server"
NEVER = Limits(ping_s=1000.0)


@pytest.fixture
def recording(serve, tmp_path):
    """A server that records its answers; the next one goes on with those of the last one."""
    return lambda port=0, **options: serve(
        port=port, records=RecordFolder(tmp_path / "answers", "pack-1"), **options
    )


@pytest.fixture
def begun(browser, service, words):
    def begin(url):
        browser.open(url)
        browser.say("Go")
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(*words("one two"))
        browser.wait_for_text(".answer", "one two")
        return generation

    return begin


@pytest.fixture
def goes_on(service, words):
    """Returns a function after which every answer that begins or resumes says a third word and ends."""

    def script(generation):
        generation.say(*words(" three"))
        generation.finish("stop")

    def told():
        service.script = script

    return told


@pytest.mark.parametrize("reload", [False, True], ids=["", "and the page is loaded anew"])
def test_page_resumes_a_recorded_answer_after_server_restart(browser, recording, begun, goes_on, reload):
    server = recording()
    begun(server.url)
    server.close()
    browser.wait_for_text(".progress", "connection lost, reconnecting")
    goes_on()
    assert recording(server.address[1]).recovered == 1
    if reload:
        browser.reload()
    browser.wait_for_answers("one two three")


def test_page_loaded_without_server_resumes_its_answer_later(browser, recording, begun, words):
    generation = begun(recording().url)
    browser.wait(lambda: "one two" in browser.kept())
    browser.cut_off("/v1/")
    browser.reload()
    browser.wait_for_text(".problem", "Cannot reach the server. Retrying")
    browser.wait_for_text(".progress", "cannot reach the server, retrying")
    assert browser.answers() == ["one two"]
    browser.cut_off()
    generation.say(*words(" three"))
    generation.finish("stop")
    browser.wait_for_answers("one two three")
    browser.wait(lambda: not browser.see(".problem"))
    assert browser.text(".model") == "babbler"


def test_answer_of_a_closed_tab_continues_in_another(browser, recording, begun, words):
    url = recording().url
    generation = begun(url)
    shown = browser.run("return '/' + location.hash")
    with browser.second_tab(url, shown) as change:
        browser.wait_for_text(".answer", "In progress in another tab, unless you closed it.")
        change()
        browser.driver.get("about:blank")
        change()
        browser.click("Continue")
        browser.wait(lambda: browser.see(".progress") and ASKING not in browser.text(".progress"))
        generation.say(*words(" three"))
        generation.finish("stop")
        browser.wait_for_answers("one two three")


def test_page_reopens_a_silent_connection(browser, recording, begun, words):
    """The master's computer may have slept, or a router may have forgotten the connection."""
    generation = begun(recording(limits=NEVER).url)
    browser.run(HURRY)
    generation.say(*words(" three"))
    asked_again = (
        "return performance.getEntriesByType('resource').filter(e => e.name.includes('completions/')).length"
    )
    browser.wait(lambda: browser.run(asked_again) > 0)
    # An answer that ended on a connection that the page is about to leave would be lost with it.
    browser.run("window.takeYourTime()")
    generation.say(*words(" four"))
    browser.wait_for_text(".answer", "three four")
    generation.finish("stop")
    browser.wait_for_answers("one two three four")
