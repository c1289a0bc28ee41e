"""Devices in anonymous network namespaces, joined by a real switch process. Linux, root, /dev/net/tun.

The namespaces live as long as this process holds them open, so nothing is left behind however a test ends.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.process.network.namespaces import new_namespace, why_impossible, within
from tpiedge.lab.testbed.switch import Port, SwitchClient, SwitchPlan

_END_S = 5.0


def why_no_switch() -> str | None:
    if not sys.platform.startswith("linux"):
        return "system: the switch runs on Linux only"
    if not os.path.exists("/dev/net/tun"):
        return "system: there is no /dev/net/tun"
    if not list(Path(__file__).parents[4].glob("tpiedge/lab/testbed/_native*")):
        return "native: the switch is not built: there was no C++ compiler"
    return why_impossible()


class Devices:
    """A context manager: namespaces "a", "b" and so on, each with an address but no interface yet."""

    def __init__(self, names: str = "ab") -> None:
        self._fds: dict[str, int] = {}
        self._names = names
        self.addresses = {name: f"10.214.3.{number}" for number, name in enumerate(names, 1)}

    def __enter__(self) -> Self:
        self._fds = {name: new_namespace() for name in self._names}
        return self

    def __exit__(self, *_error: object) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def ports(self) -> tuple[Port, ...]:
        folder = f"/proc/{os.getpid()}/fd"
        return tuple(Port(name, f"{folder}/{fd}", self.addresses[name]) for name, fd in self._fds.items())

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Moves this thread to the device: its new sockets and processes belong there."""
        with within(self._fds[name]):
            yield

    def socket(self, name: str, kind: socket.SocketKind, bound: bool = True) -> socket.socket:
        """Returns a socket on the device, bound to a free port of its address. Each wait ends after 10 s."""
        with self.inside(name):
            made = socket.socket(socket.AF_INET, kind)
        made.settimeout(10.0)
        if bound:
            made.bind((self.addresses[name], 0))
        return made

    def interfaces(self, name: str) -> set[str]:
        with self.inside(name):
            return {interface for _, interface in socket.if_nameindex()}


class RunningSwitch:
    def __init__(self, plan: SwitchPlan, folder: Path) -> None:
        self.path = folder / "switch"
        command = [sys.executable, "-m", "tpiedge.lab.testbed.switch_process", str(self.path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.client = SwitchClient(self.path)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(plan.to_json() + "\n")
            self.process.stdin.flush()
            self.said = self.process.stdout.readline().strip()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        assert self.said == "ready", self.said
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        self.wait()

    def wait(self) -> int:
        """Returns the exit status; kills a switch that does not end."""
        try:
            return self.process.wait(_END_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
