"""A link of `tpiedge nodes link` gives the page on loopback the admin key, in every tab, until the master restarts."""

import httpx
import pytest

from tests.http.conftest import SECRET
from tests.http.test_cluster import ATTIC, NODE


@pytest.fixture
def server(request, service, serve):
    service._nodes = (NODE, ATTIC)
    return serve(keys=getattr(request, "param", []))


@pytest.fixture
def link(browser, server):
    """Returns a link to the page, which is not open."""
    browser.open(server.url)
    browser.driver.get("about:blank")
    answer = httpx.post(f"{server.url}/admin/link", headers={"Authorization": f"Bearer {SECRET}"})
    return f"{server.url}/#admin={answer.json()['code']}"


def test_link_shows_the_cluster_without_a_typed_key(browser, server, link):
    browser.driver.get(link)
    browser.wait_for_text(".machine", "attic")
    assert browser.run("return location.hash") == "#cluster", "no code is left"
    with browser.second_tab(server.url):
        browser.click("Cluster")
        browser.wait_for_text(".machine", "attic")


def test_link_works_in_a_tab_that_shows_the_page(browser, server, link):
    browser.open(server.url)
    browser.click("Cluster")
    browser.wait(lambda: browser.see(".locked"))
    browser.driver.get(link)
    browser.wait_for_text(".machine", "attic")


@pytest.mark.parametrize("server", [["k"]], indirect=True)
def test_cluster_asks_for_no_api_key_and_the_chat_does(browser, link):
    browser.complaints()  # those of the page before
    browser.driver.get(link)
    browser.wait_for_text(".machine", "attic")
    browser.wait(lambda: any("v1/models" in one["message"] for one in browser.driver.get_log("browser")))
    browser.draw()
    assert not browser.see("dialog[open]")
    browser.click("Chat")
    browser.wait_for_text("dialog[open]", "tpiedge keys add NAME")


def test_used_link_says_how_to_get_another(browser, link):
    browser.driver.get(link)
    browser.wait(lambda: browser.see(".machine"))
    browser.run("localStorage.clear()")
    browser.driver.get("about:blank")
    browser.driver.get(link)
    browser.wait_for_text(".locked .problem", "This link does not work any more")
    browser.wait_for_text(".locked", "tpiedge nodes link")
    assert browser.flaws() == []


def test_key_of_a_link_is_dropped_when_the_master_was_restarted(browser, server, link, serve):
    browser.driver.get(link)
    browser.wait(lambda: browser.see(".machine"))
    server.close()
    serve(port=server.address[1], secret="another-secret")
    browser.driver.get("about:blank")
    browser.driver.get(f"{server.url}/#cluster")
    browser.wait(lambda: browser.see(".locked"))
    assert not browser.see("dialog[open]")
    assert not browser.run("return localStorage['tpiedge.key.admin']")
