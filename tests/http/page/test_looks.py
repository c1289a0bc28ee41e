"""The page looks as it did, in states that are always the same: light and dark, on a desktop and a phone.

A change that is meant to be seen is followed by `python -m tools.photograph_page --looks`, and by a look at the
pictures. Compared are the mean colours of squares of 8 pixels: what Chromium draws a little differently now and then
changes none of them by more than LIMIT, and a text that is a little larger changes 0.4 % of them. Letters that are
drawn otherwise change up to 3 % though nothing is wrong: there nothing is compared.
"""

import pytest

from tests.browsing.looks import PICTURES, WALKS, differing, letters

#: Of 255, in a square's mean red, green or blue.
LIMIT = 12
#: Of all squares.
MOST = 0.002

OTHER_LETTERS = "system: letters are drawn otherwise than in the pictures (other fonts, or another Chromium)"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_page_screenshots_match_the_stored_pictures(browser, service, serve, walk, tmp_path):
    now = walk.pictures(browser, service, serve().url)
    if letters(browser) != (PICTURES / "letters.txt").read_text(encoding="utf-8").strip():
        pytest.skip(OTHER_LETTERS)
    for file, picture in now.items():
        (tmp_path / file.name).write_bytes(picture)
    shares = differing(browser, ((file.read_bytes(), picture) for file, picture in now.items()), LIMIT)
    changed = {file.name: f"{share:.2%}" for file, share in zip(now, shares, strict=True) if share > MOST}
    assert not changed, f"what differs of the pictures in {tmp_path} from those in {PICTURES}"
