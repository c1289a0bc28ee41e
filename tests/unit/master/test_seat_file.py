"""The table of seats outlasts the master."""

import json
import logging
import threading
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.master.seats import SEATS_FILE, Seat, SeatFile, Seats

ANN, BOB, NOBODY = Seat("ann", "eve"), Seat("bob"), Seat()


def keep(folder: Path, *tables: Seats) -> None:
    file = SeatFile(folder, 2)
    for seats in tables:
        file.keep(seats)
        assert file.seats == seats
    file.close()


def read(folder: Path, count: int) -> tuple[Seat, ...]:
    file = SeatFile(folder, count)
    file.close()
    return file.seats.seats


def test_the_latest_table_is_kept_whatever_the_number_of_seats_is_then(tmp_path: Path) -> None:
    assert read(tmp_path, 2) == (NOBODY, NOBODY)
    keep(tmp_path, Seats((ANN, NOBODY)), Seats((NOBODY, BOB)), Seats((ANN, BOB)))
    assert read(tmp_path, 2) == (ANN, BOB)
    assert read(tmp_path, 1) == (ANN,)
    assert read(tmp_path, 3) == (ANN, BOB, NOBODY)


def test_what_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = SeatFile(tmp_path, 1)
    (tmp_path / SEATS_FILE).mkdir()
    file.keep(Seats((ANN,)))
    file.close()
    assert "after a restart workers may have other parts of --shares than now: cannot write" in caplog.text


def test_what_could_not_be_written_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    monkeypatch.setattr(logging.getLogger("tpiedge.master.seats"), "error", lambda *_words: said.set())
    file = SeatFile(tmp_path, 1)
    in_the_way = tmp_path / SEATS_FILE
    in_the_way.mkdir()
    file.keep(Seats((ANN,)))
    assert said.wait(10.0)
    in_the_way.rmdir()
    file.close()
    assert read(tmp_path, 1) == (ANN,)


@pytest.mark.parametrize(
    "seats", [None, {}, ["ann"], [["ann"]], [["ann", 1]], [["ann", ""], ["", "ann"]], [["a", "a"]]]
)
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, seats: object) -> None:
    path = tmp_path / SEATS_FILE
    path.write_text(json.dumps({"seats": seats}))
    path.chmod(0o600)
    with pytest.raises(UserError, match="is damaged: restore it from a backup; or delete it"):
        SeatFile(tmp_path, 2)
