"""What a machine says that it computes with."""

from importlib import metadata
from pathlib import Path

import pytest

from tpiedge.joining.enrolment import own_numerics


@pytest.mark.parametrize(
    ("installed", "said"),
    [("2.9.1+cpu", "2.9.1"), ("2.9.1", "2.9.1"), ("2.10.0.dev20260101+cu130", "2.10.0.dev20260101")],
)
def test_what_a_build_adds_to_the_release_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, said: str
) -> None:
    folder = tmp_path / f"torch-{installed}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert own_numerics().torch == said


def test_no_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert own_numerics().torch == ""
