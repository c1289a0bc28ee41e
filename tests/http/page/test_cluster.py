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
    browser.run("sessionStorage['tpiedge.key.admin'] = arguments[0]; location.hash = '#cluster'", SECRET)
    browser.wait(lambda: browser.see(".machine"))
    return browser


def test_cluster_view_asks_for_the_admin_key(browser, server):
    browser.open(server.url)
    browser.click("Cluster")
    browser.wait_for_text(".locked", "This view needs the admin key")
    browser.wait_for_text(".locked", "tpiedge nodes key")
    assert browser.flaws() == []
    browser.click("Enter key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.type("dialog input", "wrong")
    browser.click("Use this key", "dialog")
    browser.wait(lambda: browser.see("dialog .error"))
    assert browser.flaws() == []
    browser.click("Cancel", "dialog")
    browser.wait(lambda: browser.see(".locked"))
    browser.click("Enter key")
    browser.wait(lambda: browser.see("dialog[open]"))
    browser.type("dialog input", SECRET)
    browser.click("Use this key", "dialog")
    browser.wait(lambda: browser.see(".machine"))


def test_cluster_view_shows_machines_and_predictions(view, service):
    assert view.texts(".machine h3") == ["master", "attic", "cellar"]
    assert view.texts(".machine .pill") == ["serving", "serving", "spare"]
    view.wait_for_text(".machine", "too slow")
    view.wait_for_text(".machine", "Memory: 419 MB of 1.1 GB")
    view.wait_for_text(".facts-of", "1.00 ms, 30.0 MB/s")
    view.wait_for_text(".events li", "cellar was lost: silent for 1.6 s")
    assert "Links to workers" not in view.text(".machines")
    view.wait_for_text(".machine .share", "Share of the work")
    assert not view.see(".machine .details[open]")
    view.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert view.texts(".machine .details dt")[:3] == ["Rank", "Attention heads", "FFN"]
    assert view.texts(".machine .details dd") == ["0", "50 %", "25 %", "w-1", "1", "50 %", "75 %", "w-2"]
    assert view.flaws() == []
    view.click("If removed? attic")
    view.wait_for_text(".forecast", "Without attic a step would take about 25 % longer (predicted).")
    view.click("What if one more machine joined?")
    view.wait_for_text(".one-more", "With it a step would take about 25 % longer (predicted).")
    assert view.flaws() == []
    service.needed = "0 of 1 worker here"
    view.click("If removed? attic")
    view.wait_for_text(".forecast", "Without attic there is no plan: 0 of 1 worker here")
    view.run("window.fetch = () => Promise.reject(new TypeError('gone'))")
    view.wait_for_text(".problem", "Last update: ")
    assert view.texts(".machine h3") == ["master", "attic", "cellar"]
    assert view.texts(".cluster-head .pill") == ["unreachable"]
    assert view.run(
        "return [...document.querySelectorAll('.picture button')].every(e => e.matches(':disabled'))"
    )
    assert view.run("return getComputedStyle(document.querySelector('.machines')).filter") != "none"
    assert view.flaws() == []


def test_machines_are_approved_by_a_code_drained_undrained_and_revoked(view, service):
    view.wait_for_text(".waiting", "attic at 192.0.2.7")
    view.type("#code", "wrong")
    view.click("Approve")
    view.wait_for_text(".waiting .error", "no worker waits with the code 'wrong'")
    assert view.flaws() == []
    view.type("#code", CODE[0])
    view.wait(lambda: not view.see(".waiting .error"))
    view.run("document.querySelector('#code').value = ''")
    view.type("#code", f"{CODE}\n")
    view.wait(lambda: service.approved == [CODE])
    service.settles = False
    view.click("Drain attic")
    view.wait_for_text("dialog", "Then it is safe to switch off.")
    view.click("Cancel", "dialog")
    view.wait(lambda: not view.see("dialog"))
    view.click("Drain attic")
    view.click("Drain", "dialog")
    view.wait(lambda: view.texts(".machine .pill") == ["serving", "draining", "spare"])
    view.click("Undrain attic")
    view.wait(lambda: view.texts(".machine .pill") == ["serving", "spare", "spare"])
    view.click("Revoke attic")
    view.wait_for_text("dialog", "It is removed at once.")
    assert view.flaws() == []
    view.click("Revoke", "dialog")
    view.wait(lambda: service.revoked == ["w-1"])


def test_cluster_view_shows_step_timeline_and_ends_requests(view, service):
    assert not view.see(".timeline")
    service.recorded = STEP
    service.script = lambda generation: generation.say(5, 6)
    view.run("location.hash = '#chat'")
    view.wait(lambda: view.see("#message"))
    view.say("Hello")
    generation = service.generations.get(timeout=30)
    view.run("location.hash = '#cluster'")
    view.wait(lambda: view.see(".requests") and view.see(".timeline svg path"))
    assert "Step 7, 1 token, at " in view.text(".timeline p")
    assert view.text(".timeline p").endswith(": 19 ms")
    assert view.texts(".timeline-name") == ["master", "attic"]
    assert view.texts(".timeline-axis span") == ["0 ms", "5 ms", "10 ms", "15 ms"]
    assert view.texts(".timeline tbody th") == ["master", "attic"]
    assert view.texts(".timeline tbody tr:first-child td") == ["13 ms", "0.00 ms", "6.00 ms", "0.00 ms"]
    for width, height, phone in ((390, 844, True), (1200, 800, False)):
        view.shape(width, height, touch=phone)
        view.draw()
        assert view.flaws() == []
        assert view.outside() == [0, 0, 0]
        view.click("Drain attic")
        view.wait(lambda: view.see("dialog[open]"))
        assert view.flaws() == []
        view.click("Cancel", "dialog")
        view.wait(lambda: not view.see("dialog"))
    view.wait_for_text(".requests td", "answering")
    assert view.flaws() == []
    view.click(f"End {generation.request.id}")
    view.click("End it", "dialog")
    view.wait_for_text("body", "No requests.")
    assert service.dismissed == [generation.request.id]
    view.run("location.hash = '#chat'")
    view.click("Hello")
    view.wait_for_text(".answer", "the administrator of this server ended the request")


def test_page_shows_lines_that_add_a_machine(view, service):
    lines = ["python3 -m venv ~/tpiedge &&", "~/tpiedge/bin/tpiedge worker"]
    service.invite = lambda: {"lines": lines, "ports": [7170, 7171, 7172, 7173, 7174]}
    view.click("Add a machine")
    view.wait(lambda: view.see("dialog[open]"))
    assert view.texts("dialog pre") == ["python3 -m venv ~/tpiedge &&\n~/tpiedge/bin/tpiedge worker"]
    view.wait_for_text("dialog li", "sudo ufw allow 7170:7174/tcp")
    assert view.flaws() == []
    view.click("Close", "dialog")
    view.wait(lambda: not view.see("dialog[open]"))


def test_cluster_view_shows_the_next_model_and_that_none_is_in_memory(view, service):
    service.others = [replace(service.model(), name="phi", digest="pack-2")]
    service.next_pack = "pack-2"
    view.wait_for_text(".cluster-head", "next: phi")
    service.unavailable, service.asleep = "the weights are not in memory", True
    view.wait(lambda: view.texts(".cluster-head .pill") == ["asleep"])
    assert view.flaws() == []
