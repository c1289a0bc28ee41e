import errno
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.api.test_records import ACCEPTED
from tpiedge.answers.record import RESUBMIT, UNWRITTEN_BYTES, FoundAnswer, event_line, line
from tpiedge.api.records import RecordFolder, accepted_lines, read_record
from tpiedge.errors import OutOfMemory, UserError
from tpiedge.master.journal import POISON_AFTER
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
    file = RecordFolder(folder, pack).create(replace(ACCEPTED, pack=pack))
    for token in TOKENS[:count]:
        file.write(event_line(0, token))
    file.keep()
    (path,) = set(folder.iterdir()) - before
    return path


@pytest.mark.fault("P13", "a clock that is set between two masters makes no recorded answer old")
def test_records_are_found_in_creation_order_and_continued(folder: Path) -> None:
    for count in (2, 0, 1):
        os.utime(begun(folder, count=count), (0, 0))
    first, second = RecordFolder(folder, "pack-1"), RecordFolder(folder, "pack-1")
    found = first.found()
    assert [said(one) for one in found] == [TOKENS[:2], (), TOKENS[:1]]
    found[1].record.write(event_line(0, TOKENS[0]))
    again = second.found()
    assert [len(one.said) for one in again] == [2, 1, 1]
    for one in [*found, *again]:
        one.record.delete()
        one.record.delete()
        one.record.write(event_line(0, TOKENS[0]))
    for each in (first, second, second):
        each.close(WAIT_S)
    assert files(folder) == []


def test_record_is_deleted_after_close_or_without_a_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for ends in (True, False):
        records = RecordFolder(folder, "pack-1")
        file = records.create(ACCEPTED)
        if ends:
            records.close(WAIT_S)
        else:
            monkeypatch.setattr(threading.Thread, "start", refuse)
        file.delete()
        assert files(folder) == []
        records.close(WAIT_S)


def test_long_record_is_read_back(folder: Path) -> None:
    """A token with twenty scores has half a kilobyte."""
    path = begun(folder)
    scores = tuple((10_000 + index, -0.1234567890123456 - index) for index in range(20))
    line = event_line(0, Token(0, "chatcmpl-1", 1, 6, scores))
    with path.open("ab") as file:
        file.write(line * ((8 << 20) // len(line)))
    records = RecordFolder(folder, "pack-1")
    (found,) = records.found()
    assert len(found.said) == 1 + (8 << 20) // len(line)
    found.record.delete()
    records.close(WAIT_S)


def test_record_delete_does_not_block_on_a_stalled_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, stalled = threading.Event(), threading.Event()
    write = os.write

    def slow(fd: int, data: bytes) -> int:
        stalled.set()
        assert answers.wait(WAIT_S)
        return write(fd, data)

    records = RecordFolder(folder, "pack-1")
    file = records.create(ACCEPTED)
    monkeypatch.setattr(os, "write", slow)
    writer = threading.Thread(target=file.write, args=(event_line(0, TOKENS[0]),))
    writer.start()
    assert stalled.wait(WAIT_S)
    file.delete()
    records.close(0.01)
    assert len(files(folder)) == 1
    answers.set()
    writer.join(WAIT_S)
    file.delete()
    for thread in threading.enumerate():
        if thread.name.startswith("records"):
            thread.join(WAIT_S)
    assert files(folder) == []


def test_records_are_readable_by_their_owner_only(folder: Path) -> None:
    path = begun(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    path.chmod(0o640)
    with pytest.raises(UserError, match=f"chmod 600 {path}"):
        RecordFolder(folder, "pack-1").found()


def test_truncated_record_line_is_overwritten(folder: Path) -> None:
    path = begun(folder, count=2)
    with path.open("ab") as file:
        file.write(b"0123456")
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.write(event_line(0, TOKENS[2]))
    found.record.keep()
    (again,) = RecordFolder(folder, "pack-1").found()
    assert said(again) == TOKENS
    again.record.keep()


def test_record_with_an_incomplete_request_is_deleted(folder: Path) -> None:
    path = begun(folder, count=0)
    path.write_bytes(path.read_bytes()[:-1])
    assert RecordFolder(folder, "pack-1").found() == []
    assert files(folder) == []


def test_records_of_another_model_are_kept_and_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = sorted([begun(folder).name, begun(folder).name])
    assert RecordFolder(folder, "pack-2").found() == []
    assert files(folder) == left
    (line,) = caplog.messages
    assert line == f"left in {folder}: 2 answers of another model; a master of that model resumes them"


def test_records_of_a_model_that_cannot_be_opened_are_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master starts although the tokenizer of another model is damaged, or its weights no longer fit."""
    left = [begun(folder, "pack-2"), begun(folder, "pack-2")]
    ours = begun(folder)

    def tokenizer(pack: str) -> None:
        if pack == "pack-2":
            raise OutOfMemory("it needs 3 GB more")

    (found,) = RecordFolder(folder, "pack-1", "pack-2").found(tokenizer)
    found.record.keep()
    assert files(folder) == sorted(path.name for path in (ours, *left))
    assert [one.partition(": ")[2] for one in caplog.messages] == [
        "it needs 3 GB more",
        "2 answers of another model; a master of that model resumes them",
    ]


def test_only_the_newest_unusable_records_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tpiedge.api.records.MOST_OTHERS", 3)
    ours = begun(folder)
    left = [begun(folder, "pack-2") for _ in range(5)]
    left[4] = left[4].rename(left[4].with_suffix(".aside"))
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.keep()
    assert files(folder) == sorted(path.name for path in (ours, *left[2:]))
    assert [line.partition(":")[2].partition(";")[0] for line in caplog.messages] == [
        " 2 answers of another model"
    ]


def test_damaged_record_is_set_aside_and_others_continue(
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


@pytest.mark.fault(
    "P7", "killed with --journal while a prompt is read, three times in a row: it is set aside"
)
def test_record_resumed_by_too_many_crashed_masters_is_set_aside(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = begun(folder, count=1)
    for _ in range(POISON_AFTER - 1):
        (found,) = RecordFolder(folder, "pack-1").found()
        found.record.write(line(RESUBMIT))
        found.record.keep()
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.write(line(RESUBMIT))
    found.record.write(event_line(0, TOKENS[1]))
    found.record.keep()
    for number in range(2 * POISON_AFTER):
        records = RecordFolder(folder, "pack-1")
        (found,) = records.found()
        assert said(found) == TOKENS[:2], "it had got on: it is tried as often again"
        found.record.write(line(RESUBMIT))
        found.record.keep()
        if number % 2 == 0:  # such a master does not count
            records.ended_in_order()
    assert RecordFolder(folder, "pack-1").found() == []
    assert files(folder) == [path.with_suffix(".aside").name]
    (warning,) = caplog.messages
    assert f"{POISON_AFTER} masters resumed it and ended first" in warning


@pytest.mark.fault(
    "F6", "the state disk is full or fails: answers go on; those that begin then are unrecorded"
)
@pytest.mark.fault("F6", "the state disk is full for a while: once there is room the record has all")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_ends_no_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    records, write, room = RecordFolder(folder, "pack-1"), os.write, [3]
    file = records.create(ACCEPTED)

    def fail(fd: int, data: bytes) -> int:
        if room:
            return write(fd, data[: room.pop()])
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(os, "write", fail)
        file.write(event_line(0, TOKENS[0]))
        file.write(event_line(0, TOKENS[1]))
        assert not records.create(ACCEPTED).there
        assert file.there
    records.close(WAIT_S)
    (name,) = files(folder)
    kept = read_record((folder / name).read_bytes(), "pack-1")
    assert kept is not None
    assert kept.said == (), "the next master computes them anew"
    file.keep()
    (found,) = RecordFolder(folder, "pack-1").found()
    found.record.keep()
    assert said(found) == TOKENS[:2]
    assert f"{os.strerror(number)}; the answer goes on, but what is not written would not" in caplog.text


def test_record_with_too_many_unwritten_bytes_is_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RecordFolder(folder, "pack-1")
    file = records.create(ACCEPTED)
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    file.write(bytes(UNWRITTEN_BYTES))
    assert file.there
    file.write(b"\n")
    records.close(WAIT_S)
    assert files(folder) == []


def test_finished_record_is_closed_and_can_be_deleted(folder: Path) -> None:
    records = RecordFolder(folder, "pack-1")
    before = len(os.listdir("/proc/self/fd"))
    file = records.create(ACCEPTED)
    file.finish()
    assert len(os.listdir("/proc/self/fd")) == before
    assert file.there
    file.delete()
    records.close(WAIT_S)
    assert files(folder) == []


def test_answer_continues_when_no_record_can_be_created(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = RecordFolder(folder, "pack-1")
    folder.rmdir()
    file = records.create(ACCEPTED)
    file.write(event_line(0, TOKENS[0]))
    file.delete()
    records.close(WAIT_S)
    assert "No such file" in caplog.text


def test_new_record_is_numbered_after_existing_ones(folder: Path) -> None:
    first = begun(folder)
    later = folder / f"{41:012d}-chatcmpl-9.answer"
    later.write_bytes(accepted_lines(ACCEPTED))
    later.chmod(0o600)
    assert sorted([first, later, begun(folder)])[-1].name.startswith(f"{42:012d}-")
