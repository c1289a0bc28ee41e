import sys

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.progress import ByteProgress, LiveLine, say

TOTAL = 1_000_000


def told_after(seconds: float, done: int, capsys: pytest.CaptureFixture[str], total: int = TOTAL) -> str:
    clock = ManualClock()
    progress = ByteProgress("packing", clock)
    clock.advance(seconds)
    progress(done, total)
    return capsys.readouterr().err


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> pytest.CaptureFixture[str]:
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    return capsys


@pytest.mark.parametrize(
    ("seconds", "done", "left"),
    [
        (3.0, TOTAL // 20, "57.0 s left"),  # both bounds are reached at once
        (4.0, TOTAL // 2, "4.0 s left"),
        (2.99, TOTAL // 20, None),  # the start of it says nothing of the rest
        (2.99, TOTAL - 1, None),
        (3.0, TOTAL // 20 - 1, None),
        (600.0, TOTAL // 20 - 1, None),
        (600.0, 0, None),
    ],
)
def test_time_left_is_shown_after_3_s_and_5_percent(
    seconds: float, done: int, left: str | None, terminal: pytest.CaptureFixture[str]
) -> None:
    line = told_after(seconds, done, terminal)
    assert line.startswith("\rpacking: ")
    assert line.endswith("left") == (left is not None)
    assert left is None or line.endswith(f", {left}")


def test_zero_total_is_not_divided_by(terminal: pytest.CaptureFixture[str]) -> None:
    assert "0% of 0" in told_after(10.0, 0, terminal, total=0)


def test_live_line_is_overwritten_and_finally_wiped(terminal: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    progress = ByteProgress("packing", clock)
    clock.advance(0.05)
    progress(1, TOTAL)
    assert terminal.readouterr().err == ""
    clock.advance(3.95)
    progress(TOTAL // 2, TOTAL)
    longer = terminal.readouterr().err
    clock.advance(0.2)
    progress(TOTAL // 100, TOTAL)  # without the time left: a shorter line
    shorter = terminal.readouterr().err
    assert longer.endswith(" left")
    assert " left" not in shorter
    assert len(shorter) == len(longer)  # so that nothing of the longer one stays
    progress.finish(TOTAL)
    wiped, _, last = terminal.readouterr().err.rpartition("\r")
    assert wiped.strip() == ""
    assert last == "packing: 1.0 MB in 4.2 s (238.1 kB/s)\n"


def test_progress_without_terminal_prints_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    progress = ByteProgress("packing", clock)
    for second in range(1, 13):
        clock.advance(1.0)
        progress(second * TOTAL // 20, TOTAL)
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.partition(",")[0] for line in told.err.splitlines()] == [
        "packing: 25% of 1.0 MB",
        "packing: 50% of 1.0 MB",
    ]
    progress.finish(0)
    assert capsys.readouterr().err == ""


def test_say_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say("made")
    assert capsys.readouterr() == ("", "made\n")


def test_told_progress_is_one_line_on_a_terminal(
    terminal: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    progress = LiveLine(clock)
    for done in (3, 6):
        clock.advance(1.0)
        progress.update(f"reading {done} of 9 tokens")
    progress.finish()
    progress.finish()
    told = "reading 6 of 9 tokens"
    assert terminal.readouterr().err == f"\rreading 3 of 9 tokens\r{told}\r{' ' * len(told)}\r"
