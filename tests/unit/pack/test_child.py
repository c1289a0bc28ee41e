import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tpiedge.errors import Cancelled, DiskFull, InternalError, OutOfMemory, ResourceError, UserError
from tpiedge.pack import process
from tpiedge.pack.layout import Storage
from tpiedge.pack.process import PackRequest, run_pack_child
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.source import SourceTensor
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(process.__file__).parents[2])}
_CHILD = ("-P", "-m", "tpiedge.pack.process")


@contextmanager
def pack_child(request: PackRequest, program: Sequence[str] = _CHILD) -> Iterator["subprocess.Popen[bytes]"]:
    """A child that was given the request. Its standard input stays open: the end of that would end it."""
    with subprocess.Popen(
        [sys.executable, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as child:
        assert child.stdin is not None
        child.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
        child.stdin.flush()
        try:
            yield child
        finally:
            child.kill()


def first_event(child: "subprocess.Popen[bytes]") -> object:
    """The kind of what it says first."""
    assert child.stdout is not None
    return json.loads(child.stdout.readline())["event"]


# A few hundred megabytes of random numbers: long enough to be interrupted.
_ROWS = 16384


@pytest.fixture
def long_request(tmp_path: Path) -> PackRequest:
    layers = tuple(BlobSpec((MatrixSpec("q", f"q{layer}", _ROWS, 4096, 128),)) for layer in range(8))
    embedding = BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),))
    spec = ModelSpec(embedding, layers, BlobSpec(), {})
    return PackRequest(spec, 1, Precision.F32, tmp_path / "pack")


def ignore(done: int, total: int) -> None:
    pass


def test_child_process_writes_a_pack(tmp_path: Path, spec: ModelSpec) -> None:
    seen: list[tuple[int, int]] = []
    request = PackRequest(spec, 5, Precision.BF16, tmp_path / "pack", 1)
    report = run_pack_child(request, lambda *at: seen.append(at))
    assert seen[-1] == (report.nbytes, report.nbytes)
    pack = Pack.open(report.path)
    verify_pack(pack)
    assert pack.blob_id(0) == pack.blob_id(1)
    assert run_pack_child(request, ignore).reused


def test_pack_request_round_trips_through_json(tmp_path: Path) -> None:
    embedding = BlobSpec((MatrixSpec("embedding", "a", 4, 6, 4),))
    spec = ModelSpec(embedding, (BlobSpec(),), BlobSpec(), {})
    tensors = {"a": SourceTensor(tmp_path / "gone", "BF16", (4, 6), 16, 48)}
    storage = Storage.of(Precision.Q4, tied=False, head=Precision.F32, search=False)
    request = PackRequest(spec, tensors, storage, tmp_path / "pack", 1)
    assert PackRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    request = replace(request, precision=Precision.F32)
    with pytest.raises(UserError, match=r"gone.*No such file"):
        run_pack_child(request, ignore)
    (tmp_path / "gone").write_bytes(bytes(40))
    with pytest.raises(ResourceError, match="cannot read 24 bytes at offset 40"):
        run_pack_child(request, ignore)


def test_interrupted_caller_ends_child_and_leaves_no_files(tmp_path: Path, long_request: PackRequest) -> None:
    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pack_child(long_request, give_up)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q4])
def test_sigterm_leaves_nothing(tmp_path: Path, long_request: PackRequest, precision: Precision) -> None:
    with pack_child(replace(long_request, precision=precision)) as child:
        assert first_event(child) == "progress"
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=30)
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["kind"]) == ("error", "Cancelled"), last
    assert child.returncode == Cancelled.exit_code
    assert list(tmp_path.iterdir()) == []


def test_a_child_dies_with_its_parent(tmp_path: Path, long_request: PackRequest) -> None:
    program = (
        "import json, sys, os, signal\n"
        "from tpiedge.pack.process import PackRequest, run_pack_child\n"
        "request = PackRequest.from_json(json.loads(sys.stdin.readline()))\n"
        "run_pack_child(request, lambda *at: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(long_request.to_json()).encode() + b"\n",
        env=ENVIRONMENT,
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
def test_errors_keep_their_kind(tmp_path, spec, kind, expected, monkeypatch):
    def tell(child: object, request: object) -> list[dict[str, str]]:
        return [{"event": "error", "kind": kind, "message": "one line"}]

    monkeypatch.setattr(process, "_events", tell)
    request = PackRequest(spec, 1, Precision.F32, tmp_path / "pack")
    with pytest.raises(expected, match="one line"):
        run_pack_child(request, ignore)


def test_killed_child_is_reported_as_out_of_memory(
    tmp_path: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(child: "subprocess.Popen[bytes]", request: object) -> list[object]:
        (tmp_path / "pack.partial-0badcafe").mkdir()
        os.kill(child.pid, signal.SIGKILL)
        return []

    monkeypatch.setattr(process, "_events", kill)
    request = PackRequest(spec, 1, Precision.F32, tmp_path / "pack")
    with pytest.raises(OutOfMemory, match="was killed"):
        run_pack_child(request, ignore)
    assert list(tmp_path.iterdir()) == [], "nor does it leave anything"


def test_packing_needs_no_torch() -> None:
    program = "import sys, tpiedge.pack.process, tpiedge.pack.export; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=True)


_PEAK = """
import re, sys
from pathlib import Path
from tpiedge.pack.process import main

status = main()
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transposed", [False, True])
def test_the_child_keeps_below_256_mb(tmp_path: Path, transposed: bool) -> None:
    """Measures the whole process, with units four times as large as any model's."""
    layer = BlobSpec((MatrixSpec("q", "q", 512, 65536, 128, transposed),))
    embedding = BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),))
    spec = ModelSpec(embedding, (layer,), BlobSpec(), {})
    request = PackRequest(spec, 1, Precision.Q4, tmp_path / "pack")
    with pack_child(request, ("-c", _PEAK)) as child:
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
        child.wait()
    assert json.loads(lines[-2])["event"] == "done"
    assert float(lines[-1]) < 256
    verify_pack(Pack.open(tmp_path / "pack"), fast=True)
