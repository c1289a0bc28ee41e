"""Names that users type for models."""

from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.model import source


def test_folder_with_a_config_is_taken(folder: Path) -> None:
    assert source.resolve_model(str(folder)) == folder


def test_demo_is_the_packaged_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_DEMO_FOLDER", folder)
    assert source.resolve_model("demo") == folder


def test_demo_that_is_not_installed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_DEMO_FOLDER", tmp_path)
    with pytest.raises(UserError, match="lacks the demo model"):
        source.resolve_model("demo")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("", "give 'demo' or a folder"),
        ("nowhere", "give 'demo' or a folder"),
        ("org/name", "hf download org/name"),
        ("a\0b", "give 'demo' or a folder"),
        ("x" * 5000, "give 'demo' or a folder"),
        ("a\nb", "give 'demo' or a folder"),
    ],
)
def test_anything_else_is_refused_in_one_line(name: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as raised:
        source.resolve_model(name)
    assert str(raised.value).isprintable()


def test_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        source.resolve_model(str(tmp_path))
