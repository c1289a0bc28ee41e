import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tpiedge.errors import ReadFault
from tpiedge.memory.arena import Arena
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.reader import DirectFile, DirectReader

SIZE = 64 * 4096


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    data = os.urandom(SIZE)
    (tmp_path / "blob").write_bytes(data)
    return data


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    return tmp_path / "blob"


def read_all(path: Path, *, direct: bool = True) -> bytes:
    arena = Arena(SIZE)
    into = arena.buffer(0, SIZE)
    quarter = SIZE // 4
    with DirectReader(DiskQueue(3)) as reader, DirectFile(path, direct=direct) as file:
        read = [reader.submit(file, at, into[at : at + quarter]) for at in range(0, SIZE, quarter)]
        assert sum(job.result() for job in read) == reader.bytes_read == SIZE
    return bytes(into)


def test_read_with_o_direct(path: Path, content: bytes) -> None:
    with DirectFile(path) as file:
        if not file.is_direct:
            pytest.skip("system: this file system refuses O_DIRECT")
    assert read_all(path) == content


def test_read_through_the_page_cache(path: Path, content: bytes) -> None:
    assert read_all(path, direct=False) == content


def test_read_falls_back_if_open_refuses_o_direct(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, command: int, flags: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert read_all(path) == content


def fail_preadv(monkeypatch: pytest.MonkeyPatch, decide: Callable[[int, int], int | None]) -> None:
    preadv, calls = os.preadv, iter(range(10**6))

    def wrapped(fd: int, buffers: list[memoryview], offset: int) -> int:
        code = decide(next(calls), offset)
        if code:
            raise OSError(code, os.strerror(code))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", wrapped)


def test_read_falls_back_if_read_refuses_o_direct(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_preadv(monkeypatch, lambda call, _: errno.EINVAL if call == 0 else None)
    assert read_all(path) == content


def test_short_reads_are_continued(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: preadv(fd, [to[0][:4096]], at))
    assert read_all(path) == content


def test_a_failing_disk_is_a_read_fault(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_preadv(monkeypatch, lambda _, offset: errno.EIO if offset == SIZE // 2 else None)
    with pytest.raises(ReadFault, match=f"at offset {SIZE // 2} of .*blob: Input/output error") as caught:
        read_all(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("cut", [4096, 100])
def test_a_short_file_is_a_read_fault(path: Path, content: bytes, direct: bool, cut: int) -> None:
    path.write_bytes(content[:-cut])
    with pytest.raises(ReadFault, match="the file ends before"):
        read_all(path, direct=direct)
