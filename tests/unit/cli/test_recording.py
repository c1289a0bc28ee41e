"""A trace that fails is told, and never instead of what it was to show."""

from pathlib import Path

import pytest

from tpiedge.cli.run import recording
from tpiedge.errors import DiskFull, PeerLost
from tpiedge.tracing.collection import Collection
from tpiedge.tracing.tracer import COMPUTE, Tracer


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no space left for t: free some")

    monkeypatch.setattr(Collection, "join", full)


@pytest.mark.usefixtures("full_disk")
def test_a_trace_that_fails_after_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PeerLost, match="node 1 was lost"), recording(tmp_path / "t", 2):
        raise PeerLost(1, "computing", "silent")
    assert capsys.readouterr().err == "trace: no space left for t: free some\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("full_disk")
def test_a_trace_that_fails_after_a_good_end(tmp_path: Path) -> None:
    with pytest.raises(DiskFull), recording(tmp_path / "t", 1):
        pass
    assert not list(tmp_path.iterdir())


def test_what_was_recorded_before_an_error_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracer = Tracer(1)
    tracer.add(COMPUTE, tracer.name("ffn"), 1.0, 2.0)

    def lose_a_node() -> None:
        with recording(tmp_path / "t", 2) as (first, _):
            tracer.write(first, 0)
            raise PeerLost(1, "computing", "silent")

    with pytest.raises(PeerLost):
        lose_a_node()
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert capsys.readouterr().err == f"trace: 1 event in {tmp_path / 't'}; node 1 left none\n"
