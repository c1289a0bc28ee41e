"""How far a prompt is read, report by report."""

from tpiedge.master.reading_progress import Reading, ReadingProgress


def test_the_first_report_says_nothing_of_the_rate() -> None:
    progress = ReadingProgress()
    assert progress.reading(100) is None
    assert not progress.take(40, 3.0)
    assert progress.reading(100) == Reading(40, 100, 0.0, None)


def test_the_rest_takes_as_long_as_what_was_read_so_far() -> None:
    progress = ReadingProgress()
    assert [progress.take(done, now) for done, now in ((40, 3.0), (50, 4.0), (50, 5.0), (45, 6.0), (80, 7.0))] == [
        False, True, False, False, True,
    ]  # fmt: skip
    assert progress.reading(120) == Reading(80, 120, 10.0, 4.0)


def test_more_than_there_is_cannot_be_read() -> None:
    progress = ReadingProgress()
    progress.take(0, 0.0)
    progress.take(500, 1.0)
    assert progress.reading(100) == Reading(100, 100, 500.0, 0.0)
