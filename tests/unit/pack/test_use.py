"""A pack that somebody uses is not deleted."""

from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.use import PackHold, remove_packs


@pytest.fixture
def packs(tmp_path: Path) -> list[Path]:
    """As far as locks see, folders with a manifest are packs."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
        (path / MANIFEST_NAME).write_text("{}")
    return paths


def test_one_that_is_used_keeps_all(packs: list[Path]) -> None:
    hold = PackHold(packs[1])
    with pytest.raises(UserError, match="two: end it first"):
        remove_packs(packs)
    assert all((path / MANIFEST_NAME).exists() for path in packs)
    hold.close()
    remove_packs(packs)
    assert not any(path.exists() for path in packs)


def test_several_may_use_one(packs: list[Path]) -> None:
    first, second = PackHold(packs[0]), PackHold(packs[0])
    first.close()
    with pytest.raises(UserError, match="end it first"):
        remove_packs(packs)
    second.close()


def test_a_forgotten_hold_ends(packs: list[Path]) -> None:
    PackHold(packs[0])
    remove_packs(packs)
