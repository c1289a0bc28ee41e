"""Packs a model, or random weights, in a child process, whose end frees its memory.

The child reads a request, one line of JSON, from stdin. It writes a line per event: {"event": "progress", "done",
"total"}, then {"event": "done", "path", "nbytes", "reused"} or {"event": "error", "kind", "message"}. When stdin ends,
the parent dies or SIGTERM comes, the child stops and leaves no files.
"""

import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import tpiedge
from tpiedge.errors import (
    Cancelled,
    DiskFull,
    InternalError,
    OutOfMemory,
    ResourceError,
    TpiedgeError,
    UserError,
)
from tpiedge.lifeline import child_environment, guard
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.files import remove_leftovers
from tpiedge.pack.layout import Storage, storage_of
from tpiedge.pack.quantised import tensor_from_json
from tpiedge.pack.source import StoredTensor, TensorSource
from tpiedge.pack.specs import JSON, ModelSpec, Precision
from tpiedge.pack.writer import PackReport, write_pack
from tpiedge.progress import ProgressCallback

# ReadFault and IntegrityError take other arguments than a message: they cross as ResourceErrors.
_ERRORS: dict[str, Callable[[str], TpiedgeError]] = {
    **{kind.__name__: kind for kind in (UserError, DiskFull, OutOfMemory, ResourceError, Cancelled)},
    **dict.fromkeys(("ReadFault", "IntegrityError"), ResourceError),
}


@dataclass(frozen=True)
class PackRequest:
    """The arguments of `write_pack`. If `source` is an int, it is the seed of random weights."""

    spec: ModelSpec
    source: Mapping[str, StoredTensor] | int
    precision: Precision | Storage
    out: Path
    distinct_layers: int | None = None

    def to_json(self) -> JSON:
        found: JSON = msgspec.to_builtins(
            self, enc_hook=lambda value: str(value.absolute()) if isinstance(value, Path) else dict(value)
        )
        return found

    @staticmethod
    def from_json(value: object) -> "PackRequest":
        def decode(kind: type, said: Any) -> object:
            return tensor_from_json(said) if kind is StoredTensor else kind(said)

        return msgspec.convert(value, PackRequest, dec_hook=decode)

    def open_source(self) -> TensorSource:
        if not isinstance(self.source, int):
            return TensorSource(self.source)
        stored = STORED.get(storage_of(self.precision, self.spec).layers, "BF16")
        # Imported only here: other requests need no random numbers.
        kind = pkgutil.resolve_name("tpiedge.lab.random_weights:RandomSource")
        made: TensorSource = kind.for_spec(self.source, self.spec, stored)
        return made


def run_pack_child(request: PackRequest, on_progress: ProgressCallback) -> PackReport:
    """Writes a pack in a child process. An error in `on_progress` ends the child. Raises the errors of `write_pack`."""
    # -P: a folder named numpy in the user's working directory must not be imported. PYTHONPATH: the child imports the
    # same tpiedge as this process, installed or not.
    command = [sys.executable, "-P", "-m", "tpiedge.pack.process"]
    paths = [str(Path(tpiedge.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = child_environment() | {"PYTHONPATH": os.pathsep.join(paths)}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        for event in _events(child, request):
            if event["event"] == "progress":
                on_progress(event["done"], event["total"])
            elif event["event"] == "done":
                return PackReport(Path(event["path"]), event["nbytes"], event["reused"])
            else:
                make = _ERRORS.get(event["kind"], InternalError)
                raise make(str(event["message"]))
        status = child.wait()
        if status == -signal.SIGKILL:
            raise OutOfMemory(
                "packing was killed, most likely for want of memory: close programs and try again"
            )
        cause = f"signal {-status}" if status < 0 else f"status {status}"
        raise InternalError(f"packing ended with {cause} and no message: see the lines above")
    finally:
        _stop(child)
        if child.returncode:  # it may have been killed before it could clean up
            remove_leftovers(request.out.absolute())


def _events(child: subprocess.Popen[bytes], request: PackRequest) -> Iterator[Any]:
    if child.stdin is None or child.stdout is None:
        raise InternalError("the packing process has no pipes")
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
        child.stdin.flush()
    yield from map(json.loads, child.stdout)


def _stop(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        if child.stdin:
            child.stdin.close()
    try:
        child.wait(10.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout:
        child.stdout.close()


def main() -> int:
    """Runs the child. Returns its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_cancelled)
    try:
        request = PackRequest.from_json(json.loads(sys.stdin.buffer.readline()))
        guard(lambda: os.kill(os.getpid(), signal.SIGTERM), signal.SIGTERM)
        with contextlib.closing(request.open_source()) as source:
            report = write_pack(
                request.spec,
                source,
                request.precision,
                request.out,
                request.distinct_layers,
                lambda done, total: _emit({"event": "progress", "done": done, "total": total}),
            )
        _ignore_signals()
        _emit({"event": "done", "path": str(report.path), "nbytes": report.nbytes, "reused": report.reused})
    except TpiedgeError as error:
        return _fail(error)
    except MemoryError:
        return _fail(OutOfMemory("memory ran out while packing: close other programs and pack again"))
    except Exception as error:
        # Cancelled may have been raised in C code, or while cleaning up.
        if isinstance(error.__cause__ or error.__context__, Cancelled):
            return _fail(Cancelled("packing was ended"))
        return _fail(InternalError(f"packing failed: {type(error).__name__}: {error}; please report this"))
    return 0


def _emit(event: Mapping[str, JSON]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _fail(error: TpiedgeError) -> int:
    _ignore_signals()
    with contextlib.suppress(OSError):
        _emit({"event": "error", "kind": type(error).__name__, "message": str(error)})
    return error.exit_code


def _raise_cancelled(number: int, frame: FrameType | None) -> None:
    del frame
    _ignore_signals()  # cleaning up must not be cancelled in its turn
    raise Cancelled(f"packing was ended by {signal.Signals(number).name}")


def _ignore_signals() -> None:
    # Not SIG_IGN: for a signal that is on its way already, Python would then print a warning with a traceback.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)


if __name__ == "__main__":
    sys.exit(main())
