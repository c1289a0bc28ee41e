"""A worker joins while the master's disk takes as long as it likes, or refuses: nobody else waits, and what is said to
the worker is what the disk has."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.gate import Gate
from tests.contract.test_joining import NAME, OTHER, WAIT_S, WORKER, link
from tests.redeeming import redeem
from tpiedge.errors import UserError
from tpiedge.joining.connecting import enrol
from tpiedge.joining.identity import peer_name
from tpiedge.joining.members import KnownWorker, read_members
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.join import Enrolled

LATE, LATER = (CurveKeys.generate() for _ in range(2))


class Disk:
    """Every fsync waits while it is `stuck`, and fails where `refusal` is a number of errno."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fsync = os.fsync
        self.waiting = threading.Event()
        self.refusal = 0
        self._free = threading.Event()
        self._free.set()
        monkeypatch.setattr(os, "fsync", self._sync)

    def stick(self) -> None:
        self.waiting.clear()
        self._free.clear()

    def free(self) -> None:
        self._free.set()

    def _sync(self, fd: int) -> None:
        self.waiting.set()
        assert self._free.wait(WAIT_S)
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self._fsync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.free()


@pytest.fixture
def gate(tmp_path: Path, disk: Disk) -> Iterator[Gate]:
    with closing(Gate(tmp_path)) as made:
        yield made
        disk.free()


@pytest.fixture
def joining() -> Iterator[Callable[..., Future[Enrolled]]]:
    with ThreadPoolExecutor(8) as threads:

        def begin(gate: Gate, keys: CurveKeys, secret: str) -> Future[Enrolled]:
            def run() -> Enrolled:
                with link(gate, keys) as spoke:
                    return enrol(spoke, "pi", secret)

            return threads.submit(run)

        yield begin


def members(folder: Path) -> list[str]:
    return [member.key for member in read_members(folder).members]


@pytest.mark.fault("P16", "the master's, when a worker joins: the worker waits, and others are answered")
def test_others_are_answered_while_the_disk_is_waited_for(gate: Gate, disk: Disk, joining) -> None:
    secret = gate.token()
    with link(gate, OTHER) as other:
        enrol(other, "old", gate.token())
        disk.stick()
        late = joining(gate, LATE, secret)
        assert disk.waiting.wait(WAIT_S)
        assert enrol(other, "old").name == peer_name(OTHER.public)
        assert not gate.door.is_member(peer_name(LATE.public))
        assert gate.door.journal.table.member(LATE.public) is None
        assert not late.done()
        disk.free()
        assert late.result(WAIT_S).name == peer_name(LATE.public)
        assert gate.door.is_member(peer_name(LATE.public))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left for .*members.json: free some"),
        (errno.EROFS, "cannot write .*members.json"),
    ],
)
def test_a_write_that_fails_lets_nobody_in_and_spends_nothing(gate, disk, tmp_path, caplog, number, words):
    secret = gate.token()
    disk.refusal = number
    with (
        link(gate) as spoke,
        pytest.raises(UserError, match=f"the master cannot let this worker in: {words}"),
    ):
        enrol(spoke, "pi", secret)
    assert any(record.message.startswith(f"cannot let {NAME} (pi) in:") for record in caplog.records)
    assert gate.hub.admission.key_of(NAME) is None
    assert members(tmp_path) == []
    disk.refusal = 0
    with link(gate, OTHER) as spoke:
        enrol(spoke, "pi", secret)


def test_a_revocation_that_cannot_be_kept_holds_and_can_be_repeated(gate, disk, tmp_path):
    gate.door.admit(KnownWorker(WORKER.public, "pi", 1.0, "code"))
    disk.refusal = errno.EROFS
    again = f"{NAME} is shut out only until the master ends: cannot write .*; then type 'tpiedge nodes revoke {NAME}'"
    with pytest.raises(UserError, match=again):
        gate.door.revoke(NAME)
    assert gate.hub.admission.judge(WORKER.public) is None
    assert members(tmp_path) == [WORKER.public]
    disk.refusal = 0
    gate.door.revoke(NAME)
    assert read_members(tmp_path).is_revoked(WORKER.public)
    assert members(tmp_path) == []


def test_who_is_revoked_during_the_write_of_another_stays_out(gate, disk, joining, tmp_path):
    """The write began when the worker was still a member."""
    gate.door.admit(KnownWorker(WORKER.public, "pi", 1.0, "code"))
    secret = gate.token()
    disk.stick()
    late = joining(gate, LATE, secret)
    assert disk.waiting.wait(WAIT_S)
    told: Future[str] = Future()
    with ThreadPoolExecutor(1) as threads:
        revoking = threads.submit(gate.door.revoke, NAME, told.set_result)
        told.result(WAIT_S)
        disk.free()
        assert late.result(WAIT_S).name == peer_name(LATE.public)
        revoking.result(WAIT_S)
    assert gate.door.journal.table.is_revoked(WORKER.public)
    assert gate.hub.admission.judge(WORKER.public) is None
    assert read_members(tmp_path) == gate.door.journal.table


def test_a_token_stays_used_when_its_worker_is_revoked_or_let_in_by_a_code(gate, tmp_path):
    secrets = [gate.token(), gate.token()]
    for keys, secret in zip((WORKER, OTHER), secrets, strict=True):
        with link(gate, keys) as spoke:
            enrol(spoke, keys.public[:8], secret)
    gate.door.revoke(NAME)
    gate.door.admit(replace(gate.door.journal.table.members[0], how="code", token=""))
    assert [redeem(tmp_path, secret) for secret in secrets] == ["used", "used"]
