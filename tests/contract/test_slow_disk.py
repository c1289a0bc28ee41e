"""A worker joins while the master's disk is slow, or refuses writes: no other worker waits, and the worker is told only
what the disk has."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.master_hub import MasterHub
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
def master(tmp_path: Path, disk: Disk) -> Iterator[MasterHub]:
    with closing(MasterHub(tmp_path)) as made:
        yield made
        disk.free()


@pytest.fixture
def joining() -> Iterator[Callable[..., Future[Enrolled]]]:
    with ThreadPoolExecutor(8) as threads:

        def begin(master: MasterHub, keys: CurveKeys, secret: str) -> Future[Enrolled]:
            def run() -> Enrolled:
                with link(master, keys) as spoke:
                    return enrol(spoke, "pi", secret)

            return threads.submit(run)

        yield begin


def members(folder: Path) -> list[str]:
    return [member.key for member in read_members(folder).members]


@pytest.mark.fault("P16", "the master's, when a worker joins: the worker waits, and others are answered")
def test_other_workers_are_answered_during_a_slow_disk_write(master: MasterHub, disk: Disk, joining) -> None:
    secret = master.token()
    with link(master, OTHER) as other:
        enrol(other, "old", master.token())
        disk.stick()
        late = joining(master, LATE, secret)
        assert disk.waiting.wait(WAIT_S)
        assert enrol(other, "old").name == peer_name(OTHER.public)
        assert not master.registrar.is_member(peer_name(LATE.public))
        assert master.registrar.journal.table.member(LATE.public) is None
        assert not late.done()
        disk.free()
        assert late.result(WAIT_S).name == peer_name(LATE.public)
        assert master.registrar.is_member(peer_name(LATE.public))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left for .*members.json: free some"),
        (errno.EROFS, "cannot write .*members.json"),
    ],
)
def test_failed_write_admits_no_worker_and_leaves_token_unused(master, disk, tmp_path, caplog, number, words):
    secret = master.token()
    disk.refusal = number
    with (
        link(master) as spoke,
        pytest.raises(UserError, match=f"the master cannot let this worker in: {words}"),
    ):
        enrol(spoke, "pi", secret)
    assert any(record.message.startswith(f"cannot let {NAME} (pi) in:") for record in caplog.records)
    assert master.hub.admission.key_of(NAME) is None
    assert members(tmp_path) == []
    disk.refusal = 0
    with link(master, OTHER) as spoke:
        enrol(spoke, "pi", secret)


def test_unsaved_revocation_holds_and_can_be_repeated(master, disk, tmp_path):
    master.registrar.admit(KnownWorker(WORKER.public, "pi", 1.0, "code"))
    disk.refusal = errno.EROFS
    again = f"{NAME} is revoked only until the master ends: cannot write .*; then type 'tpiedge nodes revoke {NAME}'"
    with pytest.raises(UserError, match=again):
        master.registrar.revoke(NAME)
    assert master.hub.admission.authenticate(WORKER.public) is None
    assert members(tmp_path) == [WORKER.public]
    disk.refusal = 0
    master.registrar.revoke(NAME)
    assert read_members(tmp_path).is_revoked(WORKER.public)
    assert members(tmp_path) == []


def test_worker_revoked_during_another_ones_write_stays_out(master, disk, joining, tmp_path):
    """The write began when the worker was still a member."""
    master.registrar.admit(KnownWorker(WORKER.public, "pi", 1.0, "code"))
    secret = master.token()
    disk.stick()
    late = joining(master, LATE, secret)
    assert disk.waiting.wait(WAIT_S)
    told: Future[str] = Future()
    with ThreadPoolExecutor(1) as threads:
        revoking = threads.submit(master.registrar.revoke, NAME, told.set_result)
        told.result(WAIT_S)
        disk.free()
        assert late.result(WAIT_S).name == peer_name(LATE.public)
        revoking.result(WAIT_S)
    assert master.registrar.journal.table.is_revoked(WORKER.public)
    assert master.hub.admission.authenticate(WORKER.public) is None
    assert read_members(tmp_path) == master.registrar.journal.table


def test_used_token_stays_used_after_revocation_or_code_admission(master, tmp_path):
    secrets = [master.token(), master.token()]
    for keys, secret in zip((WORKER, OTHER), secrets, strict=True):
        with link(master, keys) as spoke:
            enrol(spoke, keys.public[:8], secret)
    master.registrar.revoke(NAME)
    master.registrar.admit(replace(master.registrar.journal.table.members[0], how="code", token=""))
    assert [redeem(tmp_path, secret) for secret in secrets] == ["used", "used"]
