"""Takes a picture of the page's chat, as docs/page/chat.png: a question is asked of a master that runs. Or of its whole
view of the cluster while an answer runs, as docs/page/cluster.png and, with --phone, docs/page/cluster-phone.png, with
three machines.

    tpiedge master demo
    python -m tools.photograph_page http://127.0.0.1:8080 docs/page/chat.png
    tpiedge nodes key | python -m tools.photograph_page http://127.0.0.1:8080 docs/page/cluster.png --cluster

Or, with --looks, the pictures with which tests/http/page/test_looks.py compares how the page looks: look at them before
they are committed.

    python -m tools.photograph_page --looks

It needs chromium and its chromedriver.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial

from tests.browsing.browser import Browser
from tests.browsing.looks import PICTURES, WALKS, letters
from tests.fakes.service import FakeService
from tests.http.conftest import DEMO, SECRET, InstantTemplate
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.server import ApiServer
from tpiedge.host.addresses import Address
from tpiedge.model.tokenizer import Tokenizer

SIZE, PHONE, OF_CLUSTER = (1000, 640), (390, 720), (1180, 800)
#: As a script of the page: so it may be asked without a key where none is needed.
_ASK = """
const [asked] = arguments;
const headers = {"Content-Type": "application/json"};
fetch("/v1/models").then((answer) => answer.json()).then(({data: [model]}) =>
  fetch("/v1/completions", {method: "POST", headers, body: JSON.stringify({...asked, model: model.id})}));
"""
#: The height of the page without a part that scrolls.
_WHOLE = """
const main = document.querySelector("main");
return innerHeight - main.clientHeight + main.scrollHeight;
"""
_RATES = """
return (document.querySelector(".sparkline polyline")?.getAttribute("points") ?? "").split(" ");
"""
#: Looks whose rates are drawn: the first steps of an answer are not like the others.
_LOOKS = 4


def main() -> int:
    """Returns 1 if there is no browser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of the master", nargs="?")
    parser.add_argument("file", help="the PNG", nargs="?")
    parser.add_argument("--looks", action="store_true", help="the pictures of the tests; no master is needed")
    parser.add_argument("--say", action="append", help="a message, repeatable", metavar="TEXT")
    parser.add_argument("--cluster", action="store_true", help="of the cluster; the key is read from a pipe")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true", help="of a phone's size")
    options = parser.parse_args()
    if not options.looks and options.file is None:
        parser.error("the address of a master and the name of a file are needed, or --looks")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        print("there is no chromium with its chromedriver: apt install chromium-driver", file=sys.stderr)
        return 1
    browser = Browser(program, driver)
    try:
        if options.looks:
            _looks(browser)
            return 0
        width, height = PHONE if options.phone else OF_CLUSTER if options.cluster else SIZE
        browser.shape(width, height, dark=options.dark, touch=options.phone)
        browser.open(options.url)
        if options.cluster:
            _watch(browser, sys.stdin.readline().strip())
            browser.shape(width, browser.run(_WHOLE), dark=options.dark, touch=options.phone)
            browser.draw()
        else:
            _chat(browser, options.say or ["Tell me a story about a fox"])
        browser.driver.save_screenshot(options.file)
    finally:
        browser.close()
    return 0


def _looks(browser: Browser) -> None:
    """Takes the pictures of each walk, with a server of its own, whose cluster answers by script."""
    PICTURES.mkdir(exist_ok=True)
    tokenizer = Tokenizer.open(DEMO)
    for walk in WALKS:
        service = FakeService(tokenizer, InstantTemplate(), vocab_size=2048)
        server = ApiServer(service, Guard("127.0.0.1", ApiKeys(), SECRET), Address("127.0.0.1", 0), Limits())
        server.start()
        try:
            for file, picture in walk.pictures(browser, service, server.url).items():
                file.write_bytes(picture)
            (PICTURES / "letters.txt").write_text(letters(browser) + "\n", encoding="utf-8")
            browser.forget()
        finally:
            server.close()


def _chat(browser: Browser, said: Sequence[str]) -> None:
    for number, text in enumerate(said, 1):
        browser.say(text)
        browser.wait(partial(_has_answered, browser, number))


def _has_answered(browser: Browser, times: int) -> bool:
    return len(browser.texts(".facts")) == times


def _watch(browser: Browser, key: str) -> None:
    """Asks for a long answer, and waits until the page shows the times of its later steps."""
    browser.run("sessionStorage['tpiedge.key.admin'] = arguments[0]", key)
    browser.run(_ASK, {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "model": ""})
    browser.run("location.hash = '#cluster'")
    browser.wait(lambda: all("Step time" in text for text in browser.texts(".machine") or [""]))
    browser.wait(lambda: len(browser.run(_RATES)) >= _LOOKS and browser.see(".timeline"))


if __name__ == "__main__":
    sys.exit(main())
