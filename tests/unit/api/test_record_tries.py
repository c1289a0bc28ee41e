"""Who took an answer up: masters that crashed before it got on, and none that ended in order."""

import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.api.test_records import ACCEPTED
from tpiedge.api.record_file import RecordFile
from tpiedge.api.record_folder import RecordFolder
from tpiedge.master.journal import GUILTY
from tpiedge.wire.control import Token

WAIT_S = 10.0
#: What a master calls while it takes back what it wrote.
CALLS = ("open", "ftruncate", "close")


@dataclass(frozen=True)
class Life:
    """Of one master: so many `tokens` of the answer come once it has taken that up. It is killed before one of CALLS
    where `dies_before` is a number of them, and ends in order where that is None."""

    takes_up: bool
    tokens: int
    dies_before: int | None


class Killed(BaseException):
    """Nothing runs after it."""


lives = st.builds(
    Life, st.booleans(), st.sampled_from((0, 0, 0, 1, 2)), st.one_of(st.none(), st.integers(0, len(CALLS)))
)
ORDERLY, CRASH = Life(True, 0, None), Life(True, 0, 0)


def end(file: RecordFile, dies_before: int | None) -> None:
    """As far as it comes."""
    left, opened = dies_before, []

    def counted(name: str):
        function = getattr(os, name)

        def call(*arguments):
            nonlocal left
            if left == 0:
                raise Killed
            left = None if left is None else left - 1
            found = function(*arguments)
            if name == "open":
                opened.append(found)
            elif name == "close":
                opened.remove(*arguments)
            return found

        return call

    file.keep()
    with pytest.MonkeyPatch.context() as system:
        for name in CALLS:
            system.setattr(os, name, counted(name))
        try:
            file.take_back()
        except Killed:
            assert dies_before is not None
    for fd in opened:
        os.close(fd)


@given(st.lists(lives, max_size=8))
@example([ORDERLY] * (GUILTY + 1))
@example([CRASH] * (GUILTY + 1))
@example([CRASH, ORDERLY, CRASH, ORDERLY, CRASH, ORDERLY])
def test_only_masters_that_crashed_count(masters: Sequence[Life]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "answers"
        RecordFolder(folder, ACCEPTED.pack).begin(ACCEPTED).keep()
        crashes, said = 0, []
        for master in masters:
            found = RecordFolder(folder, ACCEPTED.pack).found()
            if crashes >= GUILTY:
                assert not found
                return
            (answer,) = found
            assert answer.taken_up == crashes
            assert [event for _, event in answer.said] == said
            if master.takes_up:
                answer.record.take_up()
                for _ in range(master.tokens):
                    said.append(Token(0, "chatcmpl-1", len(said), 5, ()))
                    answer.record.add(0, said[-1])
                in_time = master.dies_before is None or master.dies_before > CALLS.index("ftruncate")
                crashes = 0 if master.tokens else crashes if in_time else crashes + 1
            end(answer.record, master.dies_before)


@pytest.fixture
def taken_up(tmp_path: Path) -> tuple[RecordFolder, RecordFile, Path]:
    """An answer that this master goes on with."""
    folder = tmp_path / "answers"
    RecordFolder(folder, ACCEPTED.pack).begin(ACCEPTED).keep()
    records = RecordFolder(folder, ACCEPTED.pack)
    (found,) = records.found()
    found.record.take_up()
    (path,) = folder.iterdir()
    return records, found.record, path


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_where_the_disk_does_not_let_it_the_try_counts(
    taken_up: tuple[RecordFolder, RecordFile, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    _, file, path = taken_up
    file.keep()

    def fail(_fd: int, _size: int) -> None:
        raise OSError(number, os.strerror(number))

    written = path.read_bytes()
    with monkeypatch.context() as system:
        system.setattr(os, "ftruncate", fail)
        file.take_back()
    assert path.read_bytes() == written
    (line,) = caplog.messages
    assert f"cannot shorten {path}: {os.strerror(number)}; that this master went on" in line


def test_what_is_deleted_after_the_end_is_taken_back_all_the_same(
    taken_up: tuple[RecordFolder, RecordFile, Path],
) -> None:
    """As of an answer that fails because the master ends."""
    records, file, path = taken_up
    file.keep()
    file.delete()
    file.take_back()
    file.take_back()
    records.close(WAIT_S)
    assert b"taken up" not in path.read_bytes()


def test_what_was_deleted_or_is_written_to_is_left_alone(
    taken_up: tuple[RecordFolder, RecordFile, Path], caplog: pytest.LogCaptureFixture
) -> None:
    records, file, path = taken_up
    written = path.read_bytes()
    file.take_back()
    assert path.read_bytes() == written, "it was not kept yet"
    file.delete()
    file.keep()
    file.take_back()
    records.close(WAIT_S)
    assert not path.exists()
    assert not caplog.messages


def test_what_could_not_be_recorded_has_nothing_to_take_back(
    taken_up: tuple[RecordFolder, RecordFile, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, file, path = taken_up
    with monkeypatch.context() as system:
        system.setattr(os, "write", lambda _fd, _data: 0)
        file.add(0, Token(0, "chatcmpl-1", 0, 5, ()))
    file.keep()
    file.take_back()
    assert not path.exists()
    (line,) = caplog.messages
    assert line.startswith("cannot write")
