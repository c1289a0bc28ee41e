"""Network namespaces: named ones, which stay until they are removed, and being inside one for a while. Linux, root."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tpiedge.errors import ResourceError, UserError

NAMESPACES = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2
_OWN = "/proc/thread-self/ns/net"
_COMMAND_S = 20.0


def add_namespace(name: str) -> Path:
    """Make it, with its loopback device up. Raises UserError, ResourceError."""
    run_command(("ip", "netns", "add", name))
    run_command(("ip", "-n", name, "link", "set", "lo", "up"))
    return NAMESPACES / name


def remove_namespace(path: Path) -> None:
    """Its name: the namespace itself goes with its last process. Nothing happens where it has none. Raises OSError."""
    libc = _libc()
    if libc.umount2(os.fsencode(path), _MNT_DETACH) and os.geteuid():
        raise PermissionError(ctypes.get_errno(), "removing a network namespace needs root", str(path))
    path.unlink(missing_ok=True)  # where the name was made and not yet mounted, only that


@contextlib.contextmanager
def inside(path: Path | int) -> Iterator[None]:
    """This thread is in the namespace (a file of it, or a descriptor): the sockets, threads and processes that it makes
    belong there, and stay there. Raises OSError."""
    before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(path)
        try:
            yield
        finally:
            _set(before)
    finally:
        os.close(before)


@contextlib.contextmanager
def scratch_namespace() -> Iterator[int]:
    """A descriptor of one without a name, for tries. It goes with the block. Raises OSError."""
    before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().unshare(_CLONE_NEWNET))
        try:
            made = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _set(before)
    finally:
        os.close(before)
    try:
        yield made
    finally:
        os.close(made)


def members_of(paths: Sequence[Path]) -> set[int]:
    """The processes that are in one of the namespaces."""
    wanted = {inode for path in paths if (inode := _inode(path)) is not None}
    if not wanted:
        return set()
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid for pid in pids if _inode(Path(f"/proc/{pid}/ns/net")) in wanted}


def run_inside(path: Path | int, command: Sequence[str], stdin: str = "") -> str:
    """Raises UserError, ResourceError as `run_command`."""
    with inside(path):
        return run_command(command, stdin)


def run_command(command: Sequence[str], stdin: str = "") -> str:
    """Its output. Raises UserError where it is not installed, ResourceError with what it says where it fails."""
    try:
        ended = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=_COMMAND_S
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed: it is part of the package iproute2") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ResourceError(f"cannot run {' '.join(command)}: {error}") from None
    if ended.returncode:
        raise ResourceError(f"{' '.join(command)} failed: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _enter(path: Path | int) -> None:
    if isinstance(path, int):
        _set(path)
        return
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(opened)
    finally:
        os.close(opened)


def _set(descriptor: int) -> None:
    _check(_libc().setns(descriptor, _CLONE_NEWNET))


def _libc() -> ctypes.CDLL:
    # Python has os.setns from 3.12 on only.
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_KILLED_S = 20.0
_POLL_S = 0.01


def end_all(members: Callable[[], set[int]], polite_s: float) -> None:
    """SIGTERM to all that `members` finds, SIGKILL to what is left after `polite_s`, again and again until it finds
    none. This process is spared. Raises ResourceError if one does not end."""
    started = time.monotonic()
    asked: set[int] = set()
    while running := members() - {os.getpid()}:
        waited = time.monotonic() - started
        if waited > polite_s + _KILLED_S:
            raise ResourceError(
                f"processes of the testbed do not end: {', '.join(map(str, sorted(running)))}"
            )
        if waited > polite_s:
            _signal(running, signal.SIGKILL)
        else:
            _signal(running - asked, signal.SIGTERM)
            _signal(running - asked, signal.SIGCONT)  # who is stopped hears nothing
            asked |= running
        time.sleep(_POLL_S)


def module_processes(module: str, argument: str) -> set[int]:
    """Those that run and were started as `...

    -m MODULE ARGUMENT`, by any process with the same /run: in a container the same path is another file.
    """
    wanted = [os.fsencode(word) for word in ("-m", module, argument)]
    processes = (Path("/proc", name) for name in os.listdir("/proc") if name.isdecimal())
    return {int(path.name) for path in processes if _arguments(path)[-3:] == wanted and _shares_run(path)}


def _arguments(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return []


def _shares_run(process: Path) -> bool:
    try:
        return (process / "root" / "run").samefile("/run")
    except OSError:
        return False


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
