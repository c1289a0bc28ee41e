"""The recording of a terminal, without the terminal: scripts, the rhythm of typing, times, and the picture."""

import re
from xml.etree import ElementTree

import pytest

from tools.terminal_recording.picture import picture
from tools.terminal_recording.script import Script, Step, load
from tools.terminal_recording.snapshots import Snapshot, Span
from tpiedge.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = 40


def screen(text: str) -> Snapshot:
    return Snapshot(0.0, ((Span(0, text, len(text)),),), None)


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_special_characters_are_shown_as_text_in_svg():
    svg = picture([screen("<&> \"q\" 'a' ]]>")], COLUMNS)
    assert texts(svg) == ["<&> \"q\" 'a' ]]>"]
    svg = picture([screen("bell\a nul\0 esc\x1b[2J \ud800\uffff.")], COLUMNS)
    assert texts(svg) == ["bell\u00a0\u00a0nul\u00a0\u00a0esc [2J\u00a0\u00a0 ."]


def test_svg_loads_no_resources_and_runs_no_scripts():
    svg = picture([screen("$ ls")], COLUMNS)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|@import|@font-face|url\(", svg)


def test_script_is_loaded(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text(
        'before = ["true"]\n[[steps]]\ntype = "ls"\n[[steps]]\ntype = "cat"\nexpect = ""\npause_s = 2.0\n'
    )
    assert load(path) == Script(("true",), (Step("ls", "$ ", 1.0), Step("cat", "", 2.0)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("steps = [", "is not TOML"),
        ("", "needs steps"),
        ("wait = 1\n[[steps]]\ntype = 'ls'", "nothing else"),
        ("[[steps]]\nexpect = '$ '", "step 1 of"),
        ("[[steps]]\ntype = 'ls'\nexpects = '$ '", "nothing else"),
    ],
)
def test_invalid_script_is_refused(tmp_path, content, said):
    path = tmp_path / "script.toml"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        load(path)
