"""The page's view of the cluster, before a cluster that does what it is told."""

import re
import time
from dataclasses import fields, replace

import pytest

from tests.http.conftest import SECRET
from tests.http.test_cluster import ATTIC, NODE
from tpiedge.api.service import ClusterEvent, Forecast, Reading, StepTimeline
from tpiedge.master.counters import Counted
from tpiedge.wire.control import Stats, StepSpans, WorkerLink

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
    """Open, with the key typed."""
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


def test_links_between_workers(view, service):
    service._nodes = (NODE, ATTIC, replace(CELLAR, rank=2, state="ready"))
    service.links = (WorkerLink(1, 2, 0.0042),)
    view.wait_for_text(f"{card('w-1')} .facts-of", "Links to other workers\ncellar 4.20 ms")
    view.wait_for_text(f"{card('w-2')} .facts-of", "Links to other workers\nattic 4.20 ms")


def test_when_something_happened(view, service):
    def today():  # anew, as a day may end meanwhile
        service.told = (replace(LOST, at=time.time()), LOST)
        return re.fullmatch(r"\d\d:\d\d:\d\d", view.text(".events time"))

    view.wait(today)
    _, before = view.texts(".events time")
    assert re.fullmatch(r"1[45] Nov 2023, \d\d:\d\d:20", before)


@pytest.mark.parametrize("touch", [False, True], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
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
    """The page's own chat asks something, which runs."""
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


def test_a_machine_that_is_left_out_is_tried_again(view, service):
    assert not view.run("return document.body.innerText.includes('Try again now')")
    service._nodes = (
        NODE,
        ATTIC,
        replace(CELLAR, state="left out", why="it was lost 3 times", left_out_s=21.0),
    )
    view.click("Try again now cellar")
    view.wait(lambda: view.texts(".machine .pill") == ["serves", "serves", "spare"])


def test_who_sent_a_request(view, service):
    generation = ask(view, service)
    view.wait_for_text(".requests .sender", "127.0.0.1")
    assert not view.see(".requests .sent-by")
    view.shape(390, 844, touch=True)
    view.wait(lambda: not view.see(".requests .sender"))
    assert view.text(".requests .sent-by") == "from 127.0.0.1"
    assert view.run("return document.querySelector('.requests button').getBoundingClientRect().right") <= 390
    generation.finish()


def test_what_the_planner_predicts(view, service):
    view.click("Without it? attic")
    view.wait_for_text(".forecast", "Without attic a step would take about 25 % longer, as predicted.")
    view.click("What if one more like the last one came?")
    view.wait_for_text(".one-more", "With it a step would take about 25 % longer, as predicted.")
    service.needed = "0 of 1 worker here"
    view.click("Without it? attic")
    view.wait_for_text(".forecast", "Without attic nothing could be served: 0 of 1 worker here")


@pytest.mark.parametrize(
    ("then_s", "said"),
    [
        (0.0125, "about 25 % longer, as predicted: about 25 ms, where 20 ms are measured now."),
        (0.008, "about 20 % shorter, as predicted: about 16 ms, where 20 ms are measured now."),
        (0.01001, "about as long as now, as predicted: about 20 ms, where 20 ms are measured now."),
        (0.025, "about 2.5 times as long, as predicted: about 50 ms, where 20 ms are measured now."),
    ],
)
def test_what_is_predicted_is_scaled_by_what_is_measured(view, service, then_s, said):
    """The planner's 10 ms take 20 ms in fact."""
    stats = Stats(*(0 for _ in fields(Stats)))
    counted = Counted(replace(stats, steps=10), stats, 1.0)
    service._nodes = (replace(NODE, counted=counted), ATTIC, CELLAR)
    step = (StepSpans(0, 0, 7, 1, ((0, 15_000),), ((15_000, 20_000),), ()),)
    service.recorded = StepTimeline(0, 1.7e9, step)
    service.what_if = lambda _without: Forecast(0.01, then_s, 2, True, "")
    view.wait_for_text(".machine", "Time of a step: 20 ms")
    view.click("Without it? attic")
    view.wait_for_text(".forecast", f"Without attic a step would take {said}")


def test_what_cannot_be_is_said(view, service):
    """Where the user looks: in the card of the machine."""
    service.needed = "without attic the others cannot serve"
    view.click("Drain attic")
    view.click("Drain", "dialog")
    view.wait_for_text(f"{card('w-1')} [role=alert]", "without attic the others cannot serve")
    assert view.texts("[role=alert]") == view.texts(".machine [role=alert]")
    assert view.flaws() == []
    view.click("Close")
    view.wait(lambda: not view.see("[role=alert]"))


def test_a_refusal_goes_when_the_machines_are_others(view, service):
    """Once attic is not needed any more, or serves again, its card does not say that it cannot be done without."""
    service.needed = "without attic the others cannot serve"
    view.click("Drain attic")
    view.click("Drain", "dialog")
    view.wait_for_text(f"{card('w-1')} [role=alert]", "without attic the others cannot serve")
    service._nodes = (NODE, ATTIC, replace(CELLAR, state="drained"))
    view.wait_for_text(f"{card('w-2')} .pill", "drained")
    assert not view.see("[role=alert]")


def card(name):
    return f".machine:has(#m-{name})"


def test_a_prediction_goes_when_the_machines_are_others(view, service):
    view.click("Without it? attic")
    view.wait_for_text(".forecast", "Without attic a step would take")
    service._nodes = (NODE, ATTIC, replace(CELLAR, state="drained"))
    view.wait_for_text(f"{card('w-2')} .pill", "drained")
    assert not view.see(".forecast")


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


@pytest.mark.parametrize("reload", [False, True], ids=["", "and the page is loaded anew"])
def test_a_server_that_came_back_with_another_key(view, serve, server, reload):
    """As a master does that was started again."""
    server.close()
    view.wait_for_text(".problem", "The server cannot be reached.")
    serve(port=server.address[1], secret="the-new-secret")
    if reload:
        view.driver.refresh()
    view.wait_for_text("dialog .error", "The master was started again: it has a new key.")
    view.draw()  # the dialog is there before the view beside it is drawn anew
    assert "cannot be reached" not in view.text("main")
    assert not view.see(".pill.ready")
    view.type("dialog input", "wrong")
    view.click("Use this key", "dialog")
    view.wait_for_text("dialog .error", "The server does not know this key.")
    view.type("dialog input", "the-new-secret")
    view.click("Use this key", "dialog")
    view.wait(lambda: view.see(".pill.ready"))
    assert not view.see(".problem")


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


def test_the_last_tick_of_the_axis_has_a_label_only_where_there_is_room(view, service):
    step = tuple(StepSpans(0, rank, 7, 1, ((0, 20_300),), (), ()) for rank in range(2))
    service.recorded = StepTimeline(0, 1.7e9, step)
    view.wait(lambda: view.see(".timeline svg path"))
    assert view.texts(".timeline-axis span") == ["0 ms", "5 ms", "10 ms", "15 ms", ""]


def test_how_far_a_prompt_is_read(view, service):
    service.reading = Reading(300, 900, 150.0, 3.2)
    generation = ask(view, service)
    view.wait_for_text(".requests td", "300 of 900, 4 s left")
    assert view.flaws() == []
    generation.finish()
