"""The page's view of the cluster, before a cluster that does what it is told."""

from dataclasses import replace

import pytest

from tests.http.conftest import SECRET
from tests.http.test_cluster import ATTIC, NODE
from tpiedge.master.counters import StepTimeline
from tpiedge.master.history import ClusterEvent
from tpiedge.wire.control import StepSpans

CODE = "K7Q2"
CELLAR = replace(
    ATTIC, name="w-2", host="cellar", rank=None, state="spare", why="too slow", attention=(0, 0), ffn=(0, 0)
)
STEP = StepTimeline(
    0,
    1.7e9,
    tuple(StepSpans(0, rank, 7, 1, ((0, 9000), (15000, 19000)), ((9000, 15000),), ()) for rank in range(2)),
)
LOST = ClusterEvent(1.7e9, "lost", "cellar", "silent for 1.6 s")


@pytest.fixture
def server(service, serve):
    service._nodes = (NODE, ATTIC, CELLAR)
    service.told = (LOST,)
    return serve()


@pytest.fixture
def view(browser, server):
    browser.open(server.url)
    browser.click("Cluster")
    browser.click("Type the key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.type("dialog input", SECRET)
    browser.click("Use this key", "dialog")
    browser.wait(lambda: browser.see(".machine"))
    return browser


def test_without_the_key_it_says_what_is_needed(browser, serve):
    browser.open(serve().url)
    browser.click("Cluster")
    browser.wait_for_text(".locked", "it needs the administrator's key")
    browser.wait_for_text(".locked", "tpiedge nodes key")
    browser.click("Type the key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.type("dialog input", "wrong")
    browser.click("Use this key", "dialog")
    browser.wait(lambda: browser.see("dialog .error"))
    browser.click("Cancel", "dialog")
    browser.wait(lambda: browser.see(".locked"))


def test_the_machines(view):
    assert view.texts(".machine h3") == ["master", "attic", "cellar"]
    assert view.texts(".machine .pill") == ["serves", "serves", "spare"]
    view.wait_for_text(".machine", "too slow")
    view.wait_for_text(".machine", "Memory: 419 MB of 1.1 GB")
    view.wait_for_text(".facts-of", "1.00 ms, 30.0 MB/s")
    view.wait_for_text(".events li", "cellar was lost: silent for 1.6 s")
    assert "Links to other workers" not in view.text(".machines")
    assert view.flaws() == []


@pytest.mark.parametrize(
    ("dark", "touch"), [(False, False), (True, True)], ids=["light-desktop", "dark-phone"]
)
def test_nothing_keeps_people_from_using_it(view, service, dark, touch):
    service.script = lambda generation: generation.say(5, 6)
    service.recorded = STEP
    generation = ask(view, service)
    view.shape(*((390, 844) if touch else (1200, 800)), dark=dark, touch=touch)
    view.wait(lambda: view.see(".requests") and view.see(".timeline"))
    assert view.flaws() == []
    assert view.outside() == [0, 0, 0]
    view.click("Drain attic")
    assert view.flaws() == []
    view.click("Cancel", "dialog")
    generation.finish()


def ask(view, service):
    view.run("location.hash = '#chat'")
    view.wait(lambda: view.see("#message"))
    view.say("Hello")
    generation = service.generations.get(timeout=30)
    view.run("location.hash = '#cluster'")
    return generation


def test_a_waiting_machine_is_let_in_by_the_code_on_its_screen(view, service):
    view.wait_for_text(".waiting", "attic at 192.0.2.7")
    view.type("#code", "wrong")
    view.click("Let it in")
    view.wait_for_text(".waiting .error", "no worker waits with the code 'wrong'")
    view.run("document.querySelector('#code').value = ''")
    view.type("#code", f"{CODE}\n")
    view.wait(lambda: service.approved == [CODE])


def test_a_machine_is_drained_and_used_again_and_shut_out(view, service):
    service.settles = False
    view.click("Drain attic")
    view.wait_for_text("dialog", "Then it may be switched off.")
    view.click("Cancel", "dialog")
    view.wait(lambda: not view.see("dialog"))
    view.click("Drain attic")
    view.click("Drain", "dialog")
    view.wait(lambda: view.texts(".machine .pill") == ["serves", "drains", "spare"])
    view.click("Use again attic")
    view.wait(lambda: view.texts(".machine .pill") == ["serves", "spare", "spare"])
    view.click("Shut out attic")
    view.click("Shut out", "dialog")
    view.wait(lambda: service.revoked == ["w-1"])


def test_what_the_planner_predicts(view, service):
    view.click("Without it? attic")
    view.wait_for_text(".forecast", "Without attic a step would take about 25 % longer, as predicted.")
    view.click("What if one more like the last one came?")
    view.wait_for_text(".one-more", "With it a step would take about 25 % longer, as predicted.")
    service.needed = "0 of 1 worker here"
    view.click("Without it? attic")
    view.wait_for_text(".forecast", "Without attic nothing could be served: 0 of 1 worker here")


def test_a_request_is_ended(view, service):
    service.script = lambda generation: generation.say(5, 6)
    generation = ask(view, service)
    view.wait_for_text(".requests td", "answers")
    view.click(f"End {generation.request.id}")
    view.click("End it", "dialog")
    view.wait_for_text("body", "No request runs or waits.")
    assert service.dismissed == [generation.request.id]
    view.run("location.hash = '#chat'")
    view.click("Hello")
    view.wait_for_text(".answer", "the administrator of this server ended the request")


def test_a_server_that_is_gone_leaves_what_was_seen_last(view, serve):
    view.run("window.fetch = () => Promise.reject(new TypeError('gone'))")
    view.wait_for_text(".problem", "This is what was seen last, at ")
    assert view.texts(".machine h3") == ["master", "attic", "cellar"]
    assert view.texts(".cluster-head .pill") == ["unreachable"]
    assert view.run(
        "return [...document.querySelectorAll('.picture button')].every(e => e.matches(':disabled'))"
    )
    assert view.run("return getComputedStyle(document.querySelector('.machines')).filter") != "none"
    assert view.flaws() == []


def test_a_step_on_all_machines(view, service):
    assert not view.see(".timeline")
    service.recorded = STEP
    view.wait(lambda: view.see(".timeline svg path"))
    assert "Step 7, 1 token, at " in view.text(".timeline p")
    assert view.text(".timeline p").endswith(": 19 ms")
    assert view.texts(".timeline-name") == ["master", "attic"]
    assert view.texts(".timeline-axis span") == ["0 ms", "5 ms", "10 ms", "15 ms"]
    assert view.texts(".timeline tbody th") == ["master", "attic"]
    assert view.texts(".timeline tbody tr:first-child td") == ["13 ms", "0.00 ms", "6.00 ms", "0.00 ms"]
    assert view.flaws() == []
