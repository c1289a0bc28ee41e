from pathlib import Path

import pytest

from tpiedge.cli.run import recording
from tpiedge.errors import DiskFull, PeerLost
from tpiedge.tracing.collection import Collection
from tpiedge.tracing.tracer import COMPUTE, Tracer

LOST = PeerLost(1, "computing", "silent")


@pytest.mark.parametrize(("within", "raised"), [(LOST, PeerLost), (None, DiskFull)])
def test_failed_trace_leaves_no_files_and_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: PeerLost | None, raised: type[Exception]
) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no space left for t: free some")

    monkeypatch.setattr(Collection, "join", full)

    def record() -> None:
        with recording(tmp_path / "t", 2):
            if within is not None:
                raise within

    with pytest.raises(raised):
        record()
    assert not list(tmp_path.iterdir())


def test_trace_recorded_before_an_error_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracer = Tracer(1)
    tracer.add(COMPUTE, tracer.name("ffn"), 1.0, 2.0)

    def lose_a_node() -> None:
        with recording(tmp_path / "t", 2) as (first, _):
            tracer.write(first, 0)
            raise LOST

    with pytest.raises(PeerLost):
        lose_a_node()
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert capsys.readouterr().err == f"trace: 1 event in {tmp_path / 't'}; node 1 left none\n"
