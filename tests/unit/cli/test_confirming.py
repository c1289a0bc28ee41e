from pathlib import Path

import pytest
from click.testing import CliRunner

from tpiedge.cli.models import rm
from tpiedge.errors import UserError


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "packs" / "one"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("not JSON")
    return folder


def test_rm_deletes_only_after_confirmation(pack: Path, tmp_path: Path) -> None:
    def remove(typed: str, *flags: str) -> BaseException | None:
        return CliRunner().invoke(rm, ["one", "--cache", str(tmp_path), *flags], input=typed).exception

    refused = remove("")
    assert isinstance(refused, UserError)
    assert str(refused) == "standard input is closed: give --yes to delete without asking"
    assert remove("n\n") is None
    assert pack.exists()
    assert remove("y\n") is None
    assert not pack.exists()
