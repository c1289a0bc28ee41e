"""The recording of a terminal, without the terminal: scripts, the rhythm of typing, times, and the picture."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tools.terminal_recording.picture import HOLD_S, picture
from tools.terminal_recording.script import Script, Step, load
from tools.terminal_recording.shell import rhythm
from tools.terminal_recording.snapshots import Line, Snapshot, Span, shorten_pauses, thin
from tpiedge.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = 40
_KEYFRAMES = re.compile(r"@keyframes (\w+)\{((?:[\d.]+%\{[^}]*\})*)\}")
_STOP = re.compile(r"([\d.]+)%\{transform:translate\(([-\d.]+)px,([-\d.]+)px\)\}")
_AT_REST = re.compile(r"#(\w+)\{[^}]*transform:translate\(([-\d.]+)px,([-\d.]+)px\)\}")
_PERIOD = re.compile(r"\.m\{animation:([\d.]+)s step-end infinite\}")


def line(text: str, **look) -> Line:
    return (Span(0, text, len(text), **look),) if text else ()


def screen(at_s: float, *texts: str, cursor: tuple[int, int] | None = (0, 0)) -> Snapshot:
    return Snapshot(at_s, tuple(map(line, texts)), cursor)


SESSION = [
    screen(0.0, "$", ""),
    screen(1.0, "$ ls", "", cursor=(0, 4)),
    screen(1.5, "$ ls", "a  b", cursor=None),
    screen(3.0, "a  b", "$", cursor=(1, 2)),
]


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def keyframes(svg: str) -> dict[str, list[tuple[float, float, float]]]:
    """Name -> (per cent, x, y) of every stop."""
    return {
        name: [(float(per_cent), float(x), float(y)) for per_cent, x, y in _STOP.findall(stops)]
        for name, stops in _KEYFRAMES.findall(svg)
    }


def shown(svg: str, row: int, per_cent: float) -> str:
    """The text in a row's window at that time, found the way a browser does."""
    reel = next(one for one in ElementTree.fromstring(svg).iter(f"{SVG}g") if one.get("id") == f"r{row}")
    moved = [y for at, _, y in keyframes(svg)[f"r{row}"] if at <= per_cent][-1]
    named = {one.get("id"): "".join(one.itertext()) for one in ElementTree.fromstring(svg).iter(f"{SVG}g")}
    return "".join(named[use.get("href", "")[1:]] for use in reel if float(use.get("y", "")) + moved == 0)


def test_every_distinct_line_is_written_once():
    svg = picture(SESSION, COLUMNS)
    assert texts(svg) == ["$", "$ ls", "a\u00a0\u00a0b"]
    referred = {use.get("href") for use in ElementTree.fromstring(svg).iter(f"{SVG}use")}
    assert referred == {"#l0", "#l1", "#l2"}


@pytest.mark.parametrize(
    ("at_s", "rows"),
    [
        (0.5, ["$", ""]),
        (1.2, ["$ ls", ""]),
        (2.0, ["$ ls", "a\u00a0\u00a0b"]),
        (7.9, ["a\u00a0\u00a0b", "$"]),
    ],
)
def test_what_is_seen_when(at_s, rows):
    svg = picture(SESSION, COLUMNS)
    assert [shown(svg, row, 100 * at_s / (3.0 + HOLD_S)) for row in range(2)] == rows


def test_times_increase_and_the_last_snapshot_is_held():
    svg = picture(SESSION, COLUMNS)
    period_s = float(_PERIOD.search(svg)[1])
    assert period_s == 3.0 + HOLD_S
    for stops in keyframes(svg).values():
        assert stops[0][0] == 0
        assert all(before[0] < after[0] for before, after in pairwise(stops))
        assert stops[-1][0] / 100 * period_s <= 3.0 + 0.001


def test_without_motion_the_last_snapshot_is_seen():
    svg = picture(SESSION, COLUMNS)
    assert "@media (prefers-reduced-motion:reduce){.m{animation:none!important}}" in svg
    at_rest = {name: (float(x), float(y)) for name, x, y in _AT_REST.findall(svg)}
    assert at_rest == {name: stops[-1][1:] for name, stops in keyframes(svg).items()}


def test_the_cursor_moves_and_hides():
    stops = keyframes(picture(SESSION, COLUMNS))["c"]
    assert [(x, y) for _, x, y in stops] == [(0, 0), (33.6, 0), (-16.8, 0), (16.8, 20)]


def test_a_single_snapshot_does_not_move():
    svg = picture([screen(0.0, "$")], COLUMNS)
    assert texts(svg) == ["$"]
    assert not keyframes(svg)


def test_what_means_something_to_xml_or_to_a_terminal_is_text():
    svg = picture([screen(0.0, "<&> \"q\" 'a' ]]>", "bell\a nul\0 esc\x1b[2J \ud800\uffff.")], COLUMNS)
    assert texts(svg) == ["<&> \"q\" 'a' ]]>", "bell  nul  esc [2J   .".replace("  ", "\u00a0\u00a0")]


def test_colours_weight_and_places_of_spans():
    spans = (Span(0, "$", 1, "green", True), Span(2, "大", 2, "ff8700"), Span(5, "plain", 5))
    svg = picture([Snapshot(0.0, (spans,), None)], COLUMNS)
    attributes = [one.attrib for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert [one.get("fill") for one in attributes] == ["#6fcf7f", "#ff8700", None]
    assert [one.get("font-weight") for one in attributes] == ["bold", None, None]
    assert [(one["x"], one["textLength"]) for one in attributes] == [
        ("0", "8.4"),
        ("16.8", "16.8"),
        ("42", "42"),
    ]


def test_nothing_is_loaded_and_nothing_is_run():
    svg = picture(SESSION, COLUMNS)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|@import|@font-face|url\(", svg)


def test_a_long_session_stays_small():
    """A minute in which each of twelve snapshots a second shows one more word, and every tenth word begins a line:
    24 lines are full after a third of it, and from then on all of them move up with every line."""
    session = []
    written = [""]
    for number in range(60 * 12):
        written = [*written, ""] if number and number % 10 == 0 else written
        written = [*written[-24:-1], f"{written[-1]} word{number}".lstrip()]
        session.append(screen(number / 12, *written, *[""] * (24 - len(written))))
    assert len({one.lines for one in session}) == 720
    assert len(picture(session, 88).encode()) < 300_000


def test_thinning_keeps_the_last_of_every_slot():
    session = [
        screen(at_s, text) for at_s, text in ((0.0, "a"), (0.1, "b"), (0.4, "c"), (0.6, "d"), (2.2, "e"))
    ]
    assert thin(session, per_second=2) == [screen(0.0, "c"), screen(0.5, "d"), screen(2.0, "e")]


def test_pauses_are_shortened_and_the_rest_is_kept():
    session = [screen(3.0, "a"), screen(3.5, "b"), screen(60.0, "c"), screen(60.25, "d")]
    assert [one.at_s for one in shorten_pauses(session, longest_s=2.0)] == [0.0, 0.5, 2.5, 2.75]


def test_typing_is_uneven_and_always_the_same():
    pauses = rhythm("tpiedge ls")
    assert pauses == rhythm("tpiedge ls")
    assert len(set(pauses)) == len(pauses) == 10
    assert all(0.03 <= pause <= 0.14 for pause in pauses)


def test_a_script(tmp_path):
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
def test_a_script_with_mistakes(tmp_path, content, said):
    path = tmp_path / "script.toml"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        load(path)


def test_no_script(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        load(tmp_path / "none.toml")
