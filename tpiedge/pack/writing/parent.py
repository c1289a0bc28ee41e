"""The parent's side of packing in a child process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tpiedge
from tpiedge.child_environment import child_environment
from tpiedge.errors import (
    Cancelled,
    DiskFull,
    InternalError,
    OutOfMemory,
    ResourceError,
    TpiedgeError,
    UserError,
)
from tpiedge.pack.writing.child import PackRequest
from tpiedge.pack.writing.target import remove_leftovers
from tpiedge.pack.writing.writer import PackReport
from tpiedge.progress import ProgressCallback

# ReadFault and IntegrityError are made from their parts: their message crosses as that of a ResourceError.
_ERRORS: dict[str, Callable[[str], TpiedgeError]] = {
    "UserError": UserError,
    "DiskFull": DiskFull,
    "OutOfMemory": OutOfMemory,
    "ResourceError": ResourceError,
    "ReadFault": ResourceError,
    "IntegrityError": ResourceError,
    "Cancelled": Cancelled,
}
_STOP_TIMEOUT_S = 10.0


def run_pack_child(request: PackRequest, on_progress: ProgressCallback) -> PackReport:
    """Write a pack in a child process and wait for it, in the calling thread.

    `on_progress(bytes done, bytes in all)` is called in this thread; if it raises, or the thread is
    interrupted, the child is ended and leaves nothing. Raises what `write_pack` raises.
    """
    with _child(request.out.absolute()) as child:
        for event in _events(child, request):
            if event["event"] == "progress":
                on_progress(event["done"], event["total"])
            elif event["event"] == "done":
                return PackReport(Path(event["path"]), event["nbytes"], event["reused"])
            else:
                make = _ERRORS.get(event["kind"], InternalError)
                raise make(str(event["message"]))
        raise _unexpected_end(child.wait())


@contextlib.contextmanager
def _child(out: Path) -> Iterator[subprocess.Popen[bytes]]:
    # -P: a folder named numpy in the user's working directory must not be imported.
    command = [sys.executable, "-P", "-m", "tpiedge.pack.writing.child"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())
    try:
        yield child
    finally:
        _stop(child)
        if child.returncode:  # it may have been killed, here or by the system, before it could clean up
            remove_leftovers(out)


def _environment() -> dict[str, str]:
    """The child imports the same tpiedge as this process, installed or not."""
    folder = str(Path(tpiedge.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return child_environment() | {"PYTHONPATH": f"{folder}{os.pathsep}{inherited}" if inherited else folder}


def _events(child: subprocess.Popen[bytes], request: PackRequest) -> Iterator[Any]:
    if child.stdin is None or child.stdout is None:
        raise InternalError("the packing process has no pipes")
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
        child.stdin.flush()
    for line in child.stdout:
        yield json.loads(line)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """The end of stdin asks the child to clean up and go; SIGKILL follows if it does not."""
    with contextlib.suppress(BrokenPipeError):
        if child.stdin:
            child.stdin.close()
    try:
        child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout:
        child.stdout.close()


def _unexpected_end(status: int) -> TpiedgeError:
    if status == -signal.SIGKILL:
        return OutOfMemory("packing was killed, most likely for want of memory: close programs and try again")
    cause = f"signal {-status}" if status < 0 else f"status {status}"
    return InternalError(f"packing ended with {cause} and no message: see the lines above")
