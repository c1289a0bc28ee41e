import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.pack.children import first_event, pack_child
from tpiedge.errors import Cancelled, DiskFull, InternalError, OutOfMemory, ResourceError, UserError
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec
from tpiedge.pack.storage import Storage
from tpiedge.pack.writing import parent
from tpiedge.pack.writing.child import CheckpointTensors, PackRequest, RandomTensors
from tpiedge.pack.writing.parent import run_pack_child

# A few hundred megabytes of random numbers: long enough to be interrupted.
_ROWS = 16384


@pytest.fixture
def long_request(tmp_path: Path) -> PackRequest:
    layers = tuple(BlobSpec((MatrixSpec("q", f"q{layer}", _ROWS, 4096, 128),)) for layer in range(8))
    embedding = BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),))
    spec = ModelSpec(embedding, layers, BlobSpec(), {})
    return PackRequest(spec, RandomTensors(1), Precision.F32, tmp_path / "pack")


def ignore(done: int, total: int) -> None:
    pass


def test_a_pack_from_a_child(tmp_path: Path, spec: ModelSpec) -> None:
    seen: list[tuple[int, int]] = []
    request = PackRequest(spec, RandomTensors(5), Precision.BF16, tmp_path / "pack", 1)
    report = run_pack_child(request, lambda *at: seen.append(at))
    assert seen[-1] == (report.nbytes, report.nbytes)
    pack = Pack.open(report.path)
    verify_pack(pack)
    assert pack.blob_id(0) == pack.blob_id(1)
    assert run_pack_child(request, ignore).reused


def test_requests_cross_as_json(tmp_path: Path, spec: ModelSpec) -> None:
    for storage in (
        Storage.of(Precision.BF16, tied=False),
        Storage.of(Precision.Q4, tied=False, head=Precision.F32, search=False),
    ):
        random = PackRequest(spec, RandomTensors(5), storage, tmp_path / "pack", 1)
        assert PackRequest.from_json(json.loads(json.dumps(random.to_json()))) == random


class FileTensor:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.dtype, self.shape, self.offset, self.nbytes = "BF16", (4, 6), 16, 48


def test_a_checkpoint_crosses_as_its_table(tmp_path: Path, spec: ModelSpec) -> None:
    source = CheckpointTensors({"a": FileTensor(tmp_path / "f")})
    request = PackRequest(spec, source, Precision.F32, tmp_path / "pack")
    crossed = PackRequest.from_json(json.loads(json.dumps(request.to_json()))).source
    assert isinstance(crossed, CheckpointTensors)
    tensor = crossed.tensors["a"]
    assert (tensor.file, tensor.dtype, tensor.shape) == (tmp_path / "f", "BF16", (4, 6))
    with pytest.raises(UserError, match=r"the checkpoint has no tensor model\.embed_tokens"):
        run_pack_child(request, ignore)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    embedding = BlobSpec((MatrixSpec("embedding", "a", 4, 6, 4),))
    spec = ModelSpec(embedding, (BlobSpec(),), BlobSpec(), {})
    source = CheckpointTensors({"a": FileTensor(tmp_path / "gone")})
    with pytest.raises(UserError, match=r"gone.*No such file"):
        run_pack_child(PackRequest(spec, source, Precision.F32, tmp_path / "pack"), ignore)
    (tmp_path / "gone").write_bytes(bytes(40))
    with pytest.raises(ResourceError, match="cannot read 24 bytes at offset 40"):
        run_pack_child(PackRequest(spec, source, Precision.F32, tmp_path / "pack"), ignore)


def test_a_caller_that_gives_up_ends_the_child(tmp_path: Path, long_request: PackRequest) -> None:
    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pack_child(long_request, give_up)
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_has_to_be_killed_leaves_nothing(
    tmp_path: Path, long_request: PackRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "_STOP_TIMEOUT_S", 0.0)

    def give_up(done: int, total: int) -> None:
        assert any("partial" in entry.name for entry in tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pack_child(long_request, give_up)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def started_child(long_request: PackRequest) -> Iterator["subprocess.Popen[bytes]"]:
    """A child that has begun to write."""
    with pack_child(long_request) as child:
        assert first_event(child) == "progress"
        yield child


@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q4])
def test_sigterm_leaves_nothing(tmp_path: Path, long_request: PackRequest, precision: Precision) -> None:
    with pack_child(replace(long_request, precision=precision)) as child:
        assert first_event(child) == "progress"
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=30)
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["kind"]) == ("error", "Cancelled")
    assert child.returncode == Cancelled.exit_code
    assert list(tmp_path.iterdir()) == []


def test_a_killed_child_leaves_what_the_next_pack_removes(
    tmp_path: Path, started_child: "subprocess.Popen[bytes]", spec: ModelSpec
) -> None:
    started_child.kill()
    started_child.communicate(timeout=30)
    assert any("partial" in entry.name for entry in tmp_path.iterdir())
    run_pack_child(PackRequest(spec, RandomTensors(1), Precision.F32, tmp_path / "pack"), ignore)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]


def test_a_child_dies_with_its_parent(tmp_path: Path, long_request: PackRequest) -> None:
    program = (
        "import json, sys, os, signal\n"
        "from tpiedge.pack.writing.child import PackRequest\n"
        "from tpiedge.pack.writing.parent import run_pack_child\n"
        "request = PackRequest.from_json(json.loads(sys.stdin.readline()))\n"
        "run_pack_child(request, lambda *at: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(long_request.to_json()).encode() + b"\n",
        env=parent._environment(),
        check=False,
    )
    emptied = threading.Event()
    for _ in range(300):
        if not list(tmp_path.iterdir()):
            return
        emptied.wait(0.1)
    pytest.fail(f"left behind: {list(tmp_path.iterdir())}")


@pytest.mark.parametrize(
    ("kind", "expected"), [("DiskFull", DiskFull), ("IntegrityError", ResourceError), ("Odd", InternalError)]
)
def test_errors_keep_their_kind(
    tmp_path: Path, spec: ModelSpec, kind: str, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(child: object, request: object) -> list[dict[str, str]]:
        return [{"event": "error", "kind": kind, "message": "one line"}]

    monkeypatch.setattr(parent, "_events", tell)
    request = PackRequest(spec, RandomTensors(1), Precision.F32, tmp_path / "pack")
    with pytest.raises(expected, match="one line"):
        run_pack_child(request, ignore)


def test_a_silent_end_is_explained(tmp_path: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(child: "subprocess.Popen[bytes]", request: object) -> list[object]:
        os.kill(child.pid, signal.SIGKILL)
        return []

    monkeypatch.setattr(parent, "_events", kill)
    request = PackRequest(spec, RandomTensors(1), Precision.F32, tmp_path / "pack")
    with pytest.raises(OutOfMemory, match="was killed"):
        run_pack_child(request, ignore)


def test_packing_needs_no_torch(spec: ModelSpec, make_pack: Callable[..., Pack]) -> None:
    program = "import sys, tpiedge.pack.writing.parent, tpiedge.pack.writing.export; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], env=parent._environment(), check=True)


_PEAK = """
import re, sys
from pathlib import Path
from tpiedge.pack.writing.child import main

status = main()
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_child_keeps_below_256_mb(tmp_path: Path, transposed: bool, native: str) -> None:
    """As a whole process, with shapes of which a unit or a row is much larger than any model's."""
    rows, cols, per_unit = (256, 65536, 128) if transposed else (256, 262144, 128)
    layer = BlobSpec((MatrixSpec("q", "q", rows, cols, per_unit, transposed),))
    embedding = BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),))
    spec = ModelSpec(embedding, (layer,), BlobSpec(), {})
    request = PackRequest(spec, RandomTensors(1), Precision.Q4, tmp_path / "pack")
    environment = {"TPIEDGE_NATIVE": "0"} if native == "0" else {}
    with pack_child(request, ("-c", _PEAK), **environment) as child:
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
        child.wait()
    assert json.loads(lines[-2])["event"] == "done"
    assert float(lines[-1]) < 256
    verify_pack(Pack.open(tmp_path / "pack"), fast=True)
