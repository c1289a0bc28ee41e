"""What comes past the page cache is what comes through it, wherever it begins and ends."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tpiedge.errors import ReadFault, UserError
from tpiedge.pack.sources import source_file
from tpiedge.pack.sources.source_file import SourceFile

SIZE = 3 << 20
DATA = np.random.default_rng(5).integers(0, 256, SIZE + 700, np.uint8)
U16, F32 = np.dtype(np.uint16), np.dtype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "weights"
    file.write_bytes(DATA.tobytes())
    return file


def direct_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of those that follow."""
    seen = []
    read = SourceFile._read_direct

    def counted(self: SourceFile, fd: int, offset: int, nbytes: int) -> np.ndarray:
        seen.append(nbytes)
        return read(self, fd, offset, nbytes)

    monkeypatch.setattr(SourceFile, "_read_direct", counted)
    return seen


def failing(error: OSError, when: Callable[[int, int], bool]) -> Callable[..., int]:
    """os.preadv, but for calls of which `when(descriptor, flags)`."""
    read = os.preadv

    def preadv(fd: int, into: list[memoryview], offset: int, flags: int = 0) -> int:
        if when(fd, flags):
            raise error
        return read(fd, into, offset, flags)

    return preadv


@pytest.fixture
def any_file(path: Path) -> Iterator[SourceFile]:
    made = SourceFile(path)
    if made._direct is None:
        made.close()
        pytest.skip(f"system: no O_DIRECT in {path.parent}")
    yield made
    made.close()


@pytest.fixture
def file(any_file: SourceFile, monkeypatch: pytest.MonkeyPatch) -> SourceFile:
    """As if nothing of it were in the page cache, where the system puts what it likes."""
    monkeypatch.setattr(SourceFile, "_is_cached", lambda *_: False)
    return any_file


@pytest.mark.parametrize("offset", [0, 2, 8, 4090, 4096, 4097, 5000, 1 << 20])
def test_any_place(file: SourceFile, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = direct_reads(monkeypatch)
    found = file.array(offset, (1024, 768), U16)
    np.testing.assert_array_equal(found, DATA[offset : offset + 1024 * 768 * 2].view(U16).reshape(1024, 768))
    assert found.flags.aligned
    assert found.flags.writeable
    assert sizes == [1024 * 768 * 2]


def test_up_to_the_end_of_a_file_that_is_no_whole_pages(file: SourceFile) -> None:
    found = file.array(700, (SIZE // 4,), F32)
    assert found.tobytes() == DATA[700:].tobytes()


@pytest.mark.parametrize("offset", [704, SIZE, 2 * SIZE])
def test_beyond_the_end(file: SourceFile, offset: int) -> None:
    with pytest.raises(ReadFault, match="the file ends before"):
        file.array(offset, (SIZE // 4,), F32)


def test_a_read_that_ends_before_it_should(file: SourceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a bad sector, or from a server: what is missing is asked for once more, in another way."""
    read = os.preadv

    def preadv(fd: int, into: list[memoryview], offset: int, flags: int = 0) -> int:
        return read(fd, [into[0][:512]] if fd == file._direct else into, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.array(600, (SIZE // 4,), F32).tobytes() == DATA[600 : 600 + SIZE].tobytes()


def test_what_is_in_the_page_cache_is_taken_from_there(
    any_file: SourceFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with path.open("rb") as opened:
        opened.read()
        try:
            os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"system: {path.parent} does not tell what is in the page cache: {error}")
    sizes = direct_reads(monkeypatch)
    assert any_file.array(0, (SIZE // 4,), F32).tobytes() == DATA[:SIZE].tobytes()
    assert sizes == []


def test_asking_for_it_leaves_nothing_in_the_page_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours share a page, and so do a first reading and a second."""
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    sizes = direct_reads(monkeypatch)
    for passes in (1, 2):
        file = SourceFile(path)
        for first in range(100, SIZE, 1 << 20):
            assert file.array(first, (1 << 18,), F32).tobytes() == DATA[first : first + (1 << 20)].tobytes()
        file.close()
        if not sizes:
            pytest.skip(f"system: {path.parent} keeps in memory what is written there, or does not tell")
        assert sizes == [1 << 20] * 3 * passes


def test_where_the_page_cache_would_have_to_wait(
    any_file: SourceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", failing(BlockingIOError(), lambda _fd, flags: bool(flags)))
    sizes = direct_reads(monkeypatch)
    assert any_file.array(0, (SIZE // 4,), F32).tobytes() == DATA[:SIZE].tobytes()
    assert sizes == [SIZE]


def test_where_the_system_does_not_tell_what_is_in_the_page_cache(
    any_file: SourceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "preadv", failing(OSError(errno.EOPNOTSUPP, "no"), lambda _fd, flags: bool(flags))
    )
    sizes = direct_reads(monkeypatch)
    assert any_file.array(0, (SIZE // 4,), F32).tobytes() == DATA[:SIZE].tobytes()
    assert sizes == []


def test_a_little_goes_through_the_page_cache(file: SourceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = direct_reads(monkeypatch)
    assert file.array(3000, (100,), F32).tobytes() == DATA[3000:3400].tobytes()
    assert sizes == []


def test_a_file_system_that_refuses_in_the_end(file: SourceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.EINVAL, "no")
    monkeypatch.setattr(os, "preadv", failing(refused, lambda fd, _flags: fd == file._direct))
    assert file.array(3, (SIZE // 4,), F32).tobytes() == DATA[3 : 3 + SIZE].tobytes()
    assert file._direct is None
    assert file.array(5, (SIZE // 4,), F32).tobytes() == DATA[5 : 5 + SIZE].tobytes()


def test_a_file_system_that_refuses_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_file, "_open_direct", lambda _path: None)
    file = SourceFile(path)
    assert file.array(3, (SIZE // 4,), F32).tobytes() == DATA[3 : 3 + SIZE].tobytes()
    file.close()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot open .*none: No such file"):
        SourceFile(tmp_path / "none")
