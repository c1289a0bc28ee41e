"""The folder of records: in order, for the owner alone, and no failure of a disk ends an answer."""

import errno
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.api.test_records import ACCEPTED
from tpiedge.answers.record import FoundAnswer
from tpiedge.api.moments import ACROSS_BOOTS_S, Moment
from tpiedge.api.record_folder import KEPT_DAYS, MOST_OTHERS, RecordFolder
from tpiedge.api.records import accepted_lines, event_line
from tpiedge.errors import UserError
from tpiedge.master.journal import GUILTY
from tpiedge.wire.control import Token

TOKENS = tuple(Token(0, "chatcmpl-1", index, 5 + index, ()) for index in range(3))


WAIT_S = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "answers"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def said(found: FoundAnswer) -> tuple[object, ...]:
    return tuple(event for _, event in found.said)


def begun(folder: Path, pack: str = "pack-1", count: int = 1) -> Path:
    """The file of a record that a master left, with the first `count` tokens."""
    before = set(folder.iterdir()) if folder.exists() else set()
    file = RecordFolder(folder, pack).begin(replace(ACCEPTED, pack=pack))
    for token in TOKENS[:count]:
        file.add(0, token)
    file.keep()
    (path,) = set(folder.iterdir()) - before
    return path


def test_records_are_found_in_their_order_and_go_on(folder: Path) -> None:
    for count in (2, 0, 1):
        begun(folder, count=count)
    first, second = RecordFolder(folder, "pack-1"), RecordFolder(folder, "pack-1")
    found = first.found()
    assert [said(one) for one in found] == [TOKENS[:2], (), TOKENS[:1]]
    found[1].record.add(0, TOKENS[0])
    again = second.found()
    assert [len(one.said) for one in again] == [2, 1, 1]
    for one in [*found, *again]:
        one.record.delete()
        one.record.delete()
        one.record.add(0, TOKENS[0])
    for each in (first, second, second):
        each.close(WAIT_S)
    assert files(folder) == []


def test_what_is_deleted_does_not_wait_for_the_disk_and_the_end_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, stalled = threading.Event(), threading.Event()
    write = os.write

    def slow(fd: int, data: bytes) -> int:
        stalled.set()
        assert answers.wait(WAIT_S)
        return write(fd, data)

    records = RecordFolder(folder, "pack-1")
    file = records.begin(ACCEPTED)
    monkeypatch.setattr("tpiedge.api.record_folder.os.write", slow)
    writer = threading.Thread(target=file.add, args=(0, TOKENS[0]))
    writer.start()
    assert stalled.wait(WAIT_S)
    file.delete()
    records.close(0.01)
    assert len(files(folder)) == 1
    answers.set()
    writer.join(WAIT_S)
    file.delete()
    for thread in threading.enumerate():
        if thread.name == "records":
            thread.join(WAIT_S)
    assert files(folder) == []


def test_only_the_owner_may_read_them(folder: Path) -> None:
    path = begun(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    path.chmod(0o640)
    with pytest.raises(UserError, match=f"chmod 600 {path}"):
        RecordFolder(folder, "pack-1").found()


def test_what_was_cut_off_is_overwritten(folder: Path) -> None:
    path = begun(folder, count=2)
    with path.open("ab") as file:
        file.write(b"0123456")
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.add(0, TOKENS[2])
    found.record.keep()
    (again,) = RecordFolder(folder, "pack-1").found()
    assert said(again) == TOKENS
    again.record.keep()


def test_a_request_that_was_not_written_whole_was_promised_to_nobody(folder: Path) -> None:
    path = begun(folder, count=0)
    path.write_bytes(path.read_bytes()[:-1])
    assert RecordFolder(folder, "pack-1").found() == []
    assert files(folder) == []


def test_those_of_another_model_stay_and_one_line_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = sorted([begun(folder).name, begun(folder).name])
    assert RecordFolder(folder, "pack-2").found() == []
    assert files(folder) == left
    (line,) = caplog.messages
    assert (
        line
        == f"left in {folder}: 2 answers of another model, of which a master of that model makes the rest"
    )


def test_what_nobody_came_for_in_days_is_deleted_of_whatever_model(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, aside, others, young = begun(folder), begun(folder), begun(folder, "pack-2"), begun(folder)
    aside = aside.rename(aside.with_suffix(".aside"))
    written = young.stat().st_mtime
    began(folder, Moment("a", 5.0, written))
    caplog.clear()
    for path in (old, aside, others):
        os.utime(path, (written, written - KEPT_DAYS * 86_400))
    records = RecordFolder(folder, "pack-1", now=lambda: Moment("a", 6.0, written + 1))
    (found,) = records.found()
    found.record.keep()
    assert files(folder) == [young.name]
    (line,) = caplog.messages
    assert line == (
        f"deleted from {folder}: 3 records, older than {KEPT_DAYS} days or beyond the newest {MOST_OTHERS} with which "
        "this master cannot go on"
    )


def began(folder: Path, moment: Moment) -> None:
    """A master began then, and left no record."""
    RecordFolder(folder, "pack-3", now=lambda: moment).found()


DAYS_S = KEPT_DAYS * 86_400.0
#: A year before it, the clock of a computer without a battery begins there.
TODAY = 1.8e9
LONG_AGO = TODAY - 365 * 86_400.0


@pytest.mark.fault("P13", "a clock that is set between two masters makes no recorded answer old")
@pytest.mark.parametrize(
    ("now", "kept"),
    [
        (Moment("a", 20.0, TODAY), True),
        (Moment("a", 20.0, LONG_AGO - DAYS_S), True),
        (Moment("b", 20.0, TODAY), True),
        (Moment("b", 20.0, LONG_AGO - DAYS_S), True),
        (Moment("a", 30.0 + DAYS_S, TODAY), False),
        (Moment("a", 30.0 + DAYS_S, LONG_AGO), False),
    ],
    ids=["set", "set back", "set at the next boot", "lost at the next boot", "old", "old, and set back"],
)
def test_a_clock_that_is_set_between_two_masters_makes_no_record_old(
    folder: Path, now: Moment, kept: bool
) -> None:
    began(folder, Moment("a", 10.0, LONG_AGO))
    path = begun(folder)
    os.utime(path, (LONG_AGO, LONG_AGO + 1.0))
    found = RecordFolder(folder, "pack-1", now=lambda: now).found()
    for one in found:
        one.record.keep()
    assert len(found) == kept == path.exists()


def test_what_is_written_after_the_clock_was_set_is_as_young(folder: Path) -> None:
    began(folder, Moment("a", 10.0, LONG_AGO))
    path = begun(folder)
    os.utime(path, (TODAY, TODAY))
    for up_s, kept in ((20.0, True), (19.0 + DAYS_S, True), (21.0 + DAYS_S, False)):
        began(folder, Moment("a", up_s, TODAY + up_s))
        assert path.exists() == kept


def test_a_record_ends_at_last_on_a_computer_that_starts_every_day(folder: Path) -> None:
    path = begun(folder, "pack-2")
    days = 0
    while path.exists():
        began(folder, Moment(f"boot {days}", 20.0, TODAY + days * 86_400.0))
        days += 1
        assert days < 4 * KEPT_DAYS
    assert days > KEPT_DAYS


def test_records_of_which_no_clock_is_known_count_from_now_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of an older version, or where the file is damaged."""
    path = begun(folder)
    clock = folder.with_name("answers.clock")
    for damage in (None, b"{"):
        if damage:
            clock.write_bytes(damage)
        os.utime(path, (LONG_AGO, LONG_AGO))
        began(folder, Moment("b", 1.0, TODAY))
        assert path.stat().st_mtime == TODAY
    assert "answers.clock is damaged" in caplog.text


def test_the_age_of_a_request_is_that_of_its_boot(folder: Path) -> None:
    accepted = replace(ACCEPTED, boot="a", up_s=10.0, created=int(LONG_AGO))
    RecordFolder(folder, "pack-1").begin(accepted).keep()
    ages = []
    today = time.time()
    for now in (Moment("a", 30.0, today), Moment("b", 30.0, today), Moment("b", 30.0, LONG_AGO + 5.0)):
        (found,) = RecordFolder(folder, "pack-1", now=lambda now=now: now).found()
        found.record.keep()
        ages.append(found.age_s)
    assert ages == [20.0, ACROSS_BOOTS_S, 5.0]


def test_of_what_it_cannot_go_on_with_the_newest_are_kept_and_read_no_further_than_it_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tpiedge.api.record_folder.MOST_OTHERS", 3)
    ours = begun(folder)
    left = [begun(folder, "pack-2") for _ in range(5)]
    left[3].write_bytes(left[3].read_bytes() + b"damage that nobody reads\n")
    left[4] = left[4].rename(left[4].with_suffix(".aside"))
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.keep()
    assert files(folder) == sorted(path.name for path in (ours, *left[2:]))
    assert [line.partition(":")[2].partition(",")[0] for line in caplog.messages] == [
        " 2 answers of another model",
        " 2 records",
    ]


def test_a_damaged_one_is_set_aside_and_the_others_go_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, whole = begun(folder), begun(folder, count=2)
    damaged.write_bytes(damaged.read_bytes().replace(b" 5\n", b" 6\n"))
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.keep()
    aside = damaged.with_suffix(".aside")
    assert files(folder) == sorted([aside.name, whole.name])
    (line,) = caplog.messages
    assert str(aside) in line
    assert "line 3: it differs from its checksum" in line


def test_one_that_may_be_what_ends_masters_is_not_tried_for_ever(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = begun(folder, count=1)
    for _ in range(GUILTY - 1):
        (found,) = RecordFolder(folder, "pack-1").found()
        found.record.take_up()
        found.record.keep()
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.take_up()
    found.record.add(0, TOKENS[1])
    found.record.keep()
    for _ in range(GUILTY):
        (found,) = RecordFolder(folder, "pack-1").found()
        assert said(found) == TOKENS[:2], "it had got on: it is tried as often again"
        found.record.take_up()
        found.record.keep()
    assert RecordFolder(folder, "pack-1").found() == []
    assert files(folder) == [path.with_suffix(".aside").name]
    (line,) = caplog.messages
    assert f"{GUILTY} masters went on with it, and ended before it did" in line


def test_one_that_no_master_asked_for_ends_none(folder: Path) -> None:
    path = begun(folder, count=1)
    written = path.read_bytes()
    for _ in range(GUILTY + 1):
        (found,) = RecordFolder(folder, "pack-1").found()
        found.record.keep()
    assert path.read_bytes() == written


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_ends_no_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    file = RecordFolder(folder, "pack-1").begin(ACCEPTED)

    def fail(_fd: int, _data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    file.add(0, TOKENS[0])
    file.add(0, TOKENS[1])
    assert files(folder) == []
    (line,) = caplog.messages
    assert f"{os.strerror(number)}; the answer goes on, but would not survive the master's end" in line


def test_once_the_disk_has_room_the_record_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole: whoever is killed meanwhile leaves none."""
    file = RecordFolder(folder, "pack-1").begin(ACCEPTED)
    data = accepted_lines(ACCEPTED) + event_line(0, TOKENS[0])
    write = os.write

    def full_after(count: int) -> None:
        left = count

        def some(fd: int, data: bytes) -> int:
            nonlocal left
            if not left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            part = data[:left]
            left -= len(part)
            return write(fd, part)

        monkeypatch.setattr(os, "write", some)

    for count in (0, 1, len(data) - 1):
        full_after(count)
        file.add(0, TOKENS[0])
        file.write_anew([(0, TOKENS[0])], 0, now_too=False)
        assert (files(folder), file.there, file.lost) == ([], False, True)
    full_after(len(data) + 100)
    file.write_anew([(0, TOKENS[0])], 0, now_too=False)
    file.add(0, TOKENS[1])
    assert (file.there, file.lost) == (True, False)
    file.keep()
    (found,) = RecordFolder(folder, "pack-1").found()
    assert said(found) == TOKENS[:2]
    found.record.keep()


def test_what_ended_or_is_left_to_the_next_master_is_not_made_anew(folder: Path) -> None:
    records = RecordFolder(folder, "pack-1")
    folder.rmdir()
    ended, left = records.begin(ACCEPTED), records.begin(ACCEPTED)
    folder.mkdir(mode=0o700)
    assert all(file.lost for file in (ended, left))
    ended.delete()
    left.keep()
    for file in (ended, left):
        file.write_anew((), 0, now_too=False)
        assert (file.lost, file.there) == (False, False)
    records.close(WAIT_S)
    assert files(folder) == []


def test_what_a_killed_master_had_made_anew_in_part_is_deleted(folder: Path) -> None:
    path = begun(folder)
    path.rename(path.with_suffix(".partial"))
    assert RecordFolder(folder, "pack-1").found() == []
    assert files(folder) == []


def test_one_to_which_nothing_more_is_written_has_no_open_file_and_can_be_deleted(folder: Path) -> None:
    records = RecordFolder(folder, "pack-1")
    before = len(os.listdir("/proc/self/fd"))
    file = records.begin(ACCEPTED)
    file.finish()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (file.there, file.lost) == (True, False)
    file.delete()
    records.close(WAIT_S)
    assert files(folder) == []


def test_half_a_line_is_no_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RecordFolder(folder, "pack-1").begin(ACCEPTED)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:-1]))
    file.add(0, TOKENS[0])
    assert files(folder) == []


def test_where_no_file_can_be_made_the_answer_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = RecordFolder(folder, "pack-1")
    folder.rmdir()
    file = records.begin(ACCEPTED)
    file.add(0, TOKENS[0])
    file.delete()
    records.close(WAIT_S)
    assert "No such file" in caplog.text


def test_a_new_record_comes_after_those_that_are_there(folder: Path) -> None:
    first = begun(folder)
    later = folder / f"{41:012d}-chatcmpl-9.answer"
    later.write_bytes(accepted_lines(ACCEPTED))
    later.chmod(0o600)
    assert sorted([first, later, begun(folder)])[-1].name.startswith(f"{42:012d}-")
