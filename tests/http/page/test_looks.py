"""The page looks as it did, in states that are always the same: light and dark, on a desktop and a phone.

A change that is meant to be seen is followed by `python -m tools.photograph_page --looks`, and by a look at the
pictures. What differs is measured in squares of 8 pixels, by their mean colours: so the smoothing of a letter does not
count, nor does what another release of Chromium does to it, but the place, size and colour of what is drawn does.
"""

import pytest

from tests.browsing.looks import LOOKS, PICTURES, differing, fonts

#: Of 255, in a square's mean red, green or blue.
LIMIT = 12
#: Of all squares.
MOST = 0.002


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_it_looks_as_before(browser, service, serve, look, tmp_path):
    now = look.picture(browser, service, serve().url)
    if fonts(browser) != (PICTURES / "fonts.txt").read_text(encoding="utf-8").strip():
        pytest.skip("system: it has other fonts than the pictures were made with (Debian: fonts-dejavu-core)")
    found = tmp_path / look.file.name
    found.write_bytes(now)
    share = differing(browser, look.file.read_bytes(), now, LIMIT)
    assert share <= MOST, f"{share:.2%} of {found} differ from {look.file}"


def test_what_is_seen_is_noticed(browser, service, serve):
    """A wrong colour, a text that is a little larger, and something that moved by three pixels."""
    look = next(one for one in LOOKS if one.name == "answer-phone")
    faults = (
        ":root { --accent-soft: #f4d9d9; }",
        ".markdown { font-size: 17px; }",
        ".talk-head { padding-top: 10px; }",
        ".composer { padding-bottom: 13px; }",
        ".code-head { background: none; }",
        ".icon { display: none; }",
    )
    url = serve().url
    before = look.file.read_bytes()
    for fault in faults:
        wrong = look.picture(browser, service, url, fault)
        assert differing(browser, before, wrong, LIMIT) > MOST, fault
        browser.forget()
