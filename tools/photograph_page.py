"""Takes a picture of the page's chat, as docs/page/chat.png: a question is asked of a master that runs.

    tpiedge master demo
    python -m tools.photograph_page http://127.0.0.1:8080 docs/page/chat.png

It needs chromium and its chromedriver.
"""

import argparse
import shutil
import sys

from tests.browsing.browser import Browser

WIDTH, HEIGHT = 1000, 640


def main() -> int:
    """Status 1 where there is no browser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of the master")
    parser.add_argument("file", help="the PNG")
    parser.add_argument("--say", action="append", help="a message, repeatable", metavar="TEXT")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true", help="of a phone's size")
    options = parser.parse_args()
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        print("there is no chromium with its chromedriver: apt install chromium-driver", file=sys.stderr)
        return 1
    browser = Browser(program, driver)
    try:
        size = (390, 720) if options.phone else (WIDTH, HEIGHT)
        browser.shape(*size, dark=options.dark, touch=options.phone)
        browser.open(options.url)
        for number, text in enumerate(options.say or ["Tell me a story about a fox"], 1):
            browser.say(text)
            browser.wait(lambda number=number: len(browser.texts(".facts")) == number)
        browser.driver.save_screenshot(options.file)
    finally:
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
