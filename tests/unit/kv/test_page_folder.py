import os
from pathlib import Path

import pytest

from tpiedge.errors import DiskFull, TpiedgeError, UserError
from tpiedge.kv.page_folder import KEPT, PARKED, PageFolder, PageUsage

NAMES = [f"{'0' * 32}-3", f"{'1' * 32}-3"]
PARTIAL = f"{'ab' * 8}.partial"


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(bytes(8192))


def test_page_usage_counts_each_page_once_with_all_its_files(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path / "pages")
    assert folder.usage() == (PageUsage(), PageUsage())
    assert not folder.path.exists()
    write(folder.path / KEPT, *NAMES, f"{'0' * 32}-4", PARTIAL)
    write(folder.path / PARKED, NAMES[0])
    assert folder.usage() == (PageUsage(2, 4 * 8192), PageUsage(1, 8192))


def test_clearing_deletes_every_page_file_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / KEPT, NAMES[0], PARTIAL)
    write(tmp_path / "other", NAMES[0])
    folder = PageFolder(tmp_path)
    assert folder.usage(clear=True) == (PageUsage(1, 2 * 8192), PageUsage())
    assert folder.usage() == (PageUsage(), PageUsage())
    assert [path.relative_to(tmp_path) for path in (tmp_path / KEPT).rglob("*")] == []
    assert (tmp_path / "other" / NAMES[0]).exists()


def test_clearing_spares_the_files_of_others(tmp_path: Path) -> None:
    """A user may have linked the folder to a larger disk."""
    others = ["photo.jpg", "film.partial", f"{NAMES[0]}.txt"]
    write(tmp_path / "disk", *others, NAMES[1], PARTIAL)
    (tmp_path / "disk" / "folder").mkdir()
    (tmp_path / PARKED).symlink_to(tmp_path / "disk")
    folder = PageFolder(tmp_path, keep_bytes=10**6)
    folder.clear_unusable()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == sorted(["folder", *others])
    assert folder.usage() == (PageUsage(), PageUsage())


@pytest.mark.parametrize(("keep_bytes", "kept"), [(0, []), (8191, []), (8192, NAMES[:1]), (16384, NAMES)])
def test_start_deletes_what_the_owner_no_longer_allows(
    tmp_path: Path, keep_bytes: int, kept: list[str]
) -> None:
    """The page that was used least recently goes first."""
    for kind in (KEPT, PARKED):
        write(tmp_path / kind, *NAMES)
    os.utime(tmp_path / KEPT / NAMES[0], (2e9, 2e9))
    folder = PageFolder(tmp_path, keep_bytes, park_bytes=1)
    folder.clear_unusable()
    assert sorted(path.name for path in (tmp_path / KEPT).iterdir()) == kept
    assert folder.usage()[1] == PageUsage()


def test_files_that_vanish_meanwhile_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running node evicts files."""
    write(tmp_path / KEPT, *NAMES)
    unlink = os.unlink

    def evicted(path: str) -> None:
        unlink(path)
        if path.endswith(NAMES[0]):
            raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", evicted)
    assert PageFolder(tmp_path).usage(clear=True)[0] == PageUsage(1, 8192)


@pytest.mark.parametrize(("error", "kind"), [(OSError(30, "Read-only file system"), UserError),
                                             (OSError(28, "No space left on device"), DiskFull)])  # fmt: skip
def test_undeletable_page_files_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[TpiedgeError]
) -> None:
    def fail(_path: str) -> None:
        raise error

    write(tmp_path / KEPT, *NAMES)
    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(kind, match=str(tmp_path)):
        PageFolder(tmp_path).usage(clear=True)
