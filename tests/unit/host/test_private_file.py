import os
from pathlib import Path

import pytest

from tpiedge.errors import DiskFull, UserError
from tpiedge.host.private_file import check_folder, kept_secret

WITHIN = ("packs", "hub")


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        check_folder(folder, WITHIN, "--cache")
    line = str(refused.value)
    assert line.count("\n") == 0
    assert "--cache" in line
    return line


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o555])
def test_own_folder_is_accepted(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "packs").mkdir()
    folder.chmod(mode)
    check_folder(folder, WITHIN, "--cache")
    folder.chmod(0o700)
    check_folder(tmp_path / "new" / "one", WITHIN, "--cache")  # which is not there yet


@pytest.mark.parametrize("mode", [0o775, 0o707])
@pytest.mark.parametrize("name", [".", "packs"])
def test_folder_writable_by_others_is_refused(tmp_path: Path, mode: int, name: str) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / name).chmod(mode)
    assert f"chmod go-w {tmp_path / name}" in refusal(tmp_path)


def test_sticky_folder_is_accepted_without_shared_subfolders(tmp_path: Path) -> None:
    """The cache may be /tmp, but no folder in it that another user made or where others may write."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    check_folder(shared, WITHIN, "--cache")
    (shared / "hub").mkdir()
    (shared / "hub").chmod(0o1777)
    assert "chmod go-w" in refusal(shared)


def test_dangling_link_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to("/mnt/not there")
    assert "is a link to /mnt/not there, which is not there: make or mount that" in refusal(
        tmp_path / "cache"
    )


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    if own:
        assert f"belongs to the user with number {own}" in refusal(tmp_path)
    else:
        check_folder(tmp_path, WITHIN, "--cache")  # root's, who may change everything anyway
        os.chown(tmp_path, 4711, -1)
        assert "belongs to the user with number 4711" in refusal(tmp_path)


class Full:
    f_files, f_favail, f_bavail = 100, 0, 5000


def test_inode_exhaustion_has_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "not" / "there"
    assert "no space left" in str(DiskFull.at(new))
    monkeypatch.setattr(os, "statvfs", lambda _path: Full)
    assert f"no inodes left for {new}" in str(DiskFull.at(new))
    assert f"df -i {tmp_path}" in str(DiskFull.at(new))
    monkeypatch.setattr(Full, "f_bavail", 0)
    assert "no space left" in str(DiskFull.at(new)), "bytes are what is lacking first"
    monkeypatch.setattr(Full, "f_bavail", 1)
    monkeypatch.setattr(Full, "f_files", 0)
    assert "no space left" in str(DiskFull.at(new)), "some file systems do not count inodes"


def test_kept_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "master"
    secret = kept_secret(folder)
    assert len(secret) == 32
    assert kept_secret(folder) == secret != kept_secret(tmp_path / "another")
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(UserError, match="can be read or changed by other users"):
        kept_secret(folder)


@pytest.mark.parametrize("text", ["{}", '{"secret": "ab"}', '{"secret": 1}', "x"])
def test_damaged_kept_secret_is_refused(tmp_path: Path, text: str) -> None:
    kept_secret(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    with pytest.raises(UserError, match="is damaged"):
        kept_secret(tmp_path)
