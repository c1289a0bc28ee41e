"""The installed command as a subprocess, with everything it starts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pexpect
import psutil

from tpiedge.launch.slot import FORK_SERVER_MODULE

COMMAND = str(Path(sys.executable).with_name("tpiedge"))

# To look for processes takes milliseconds of a processor that they could start on.
_POLL_S = 0.02
_LIMIT_S = 110.0


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


class Started:
    """A running command in a session of its own, so that it can be killed with all that it starts."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._family: dict[int, psutil.Process] = {}

    def wait_for_output(self) -> None:
        """Returns at the first byte on standard output. Fails if the command ends before."""
        assert self.process.stdout is not None
        first = os.read(self.process.stdout.fileno(), 1)
        assert first, self.finish().err

    def children(self) -> list[psutil.Process]:
        """The processes it has started and that still run, oldest first: nodes in the order of ranks. Without those of
        the model's texts, and without the nodes' fork server."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self._family |= {child.pid: child for child in found}
        others = [child for child in found if not (_handles_texts(child) or self._forks_nodes(child))]
        return sorted(others, key=lambda child: (child.create_time(), child.pid))

    def _forks_nodes(self, child: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return FORK_SERVER_MODULE in child.cmdline() and child.ppid() == self.process.pid
        return False

    def finish(self, limit_s: float = _LIMIT_S) -> Ended:
        """Wait for its end, reading what it still writes."""
        out, err = self.process.communicate(timeout=limit_s)
        return Ended(self.process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def kill_all(self) -> None:
        for child in self._family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def start_command(*arguments: object) -> Started:
    return Started([str(argument) for argument in arguments])


def run_command(*arguments: object, stdin: str = "", limit_s: float = _LIMIT_S, **environment: str) -> Ended:
    """Runs to the end; a command that takes longer than `limit_s` is killed, and its children end with it."""
    words, variables = [COMMAND, *map(str, arguments)], os.environ | environment
    done = subprocess.run(words, input=stdin.encode(), capture_output=True, timeout=limit_s, env=variables)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Kills all that this process has started where the block takes longer than a command may."""

    def kill() -> None:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    timer = threading.Timer(_LIMIT_S, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _handles_texts(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.endswith("text_child.py") for word in process.cmdline())
    return False


def gone(process: psutil.Process) -> bool:
    """Whether it has ended (a zombie has)."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition, limit_s: float) -> float:
    """Seconds until `condition()` held; fails after `limit_s`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, f"not within {limit_s} s"
        time.sleep(_POLL_S)
    return time.monotonic() - started


def text_of_one_node(prompt: str, tokens: int) -> str:
    flags = ("--max-tokens", tokens, "--temperature", 0, "--threads", 1, "--json")
    ended = run_command("run", "--model", "demo", "--raw", "--prompt", prompt, *flags)
    assert ended.status == 0, ended.err
    text: str = json.loads(ended.out)["text"]
    assert len(text) > tokens
    return text


def end_terminal(child: pexpect.spawn) -> None:
    """Asks a command on a terminal to end, and waits until it has. (pexpect's own way fails where that takes more than
    some tenths of a second.)"""
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF, timeout=_LIMIT_S)
    child.wait()
    child.close()
