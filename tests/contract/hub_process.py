"""An endpoint in a process of its own, which receives nothing until it is told to: what that costs, and what it takes.

Run as a module it is that process.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil

from tpiedge.errors import PeerError
from tpiedge.transport.framing import Plane
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.control import Shutdown

_WAIT_S = 20.0


class _Process:
    """A context manager. `serve` lets it answer every message with the same; till then it only exists."""

    def __init__(self, **job: Any) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.hub_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(json.dumps(job))
        self._status = psutil.Process(self._child.pid)

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def _hear(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def serve(self) -> None:
        self._say("serve")

    @property
    def lives(self) -> bool:
        return self._child.poll() is None

    @property
    def rss(self) -> int:
        return int(self._status.memory_info().rss)

    @property
    def peak_rss(self) -> int:
        """Since it was started."""
        lines = Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            assert self.lives, f"ended with {self._child.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """The end of its standard input is that of the process."""
        with self._child:
            assert self._child.stdin is not None
            self._child.stdin.close()
            try:
                self._child.wait(_WAIT_S)
            finally:
                self._child.kill()


class HubProcess(_Process):
    """A hub; `spoke(name)` connects to it, for "flooder" and "other"."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._keys = {name: CurveKeys.generate() for name in ("hub", "flooder", "other")}
        super().__init__(
            plane=asdict(plane),
            keys=asdict(self._keys["hub"]),
            allowed={self._keys[name].public: name for name in ("flooder", "other")},
        )
        self.address = self._hear()

    def spoke(self, name: str) -> ZmqSpoke:
        keys = self._keys[name]
        return ZmqSpoke(self.address, self._keys["hub"].public, keys, name, hub_name="hub", plane=self._plane)


class SpokeProcess(_Process):
    """A spoke "spoke" of a hub of this process; it says Shutdown(1) at once."""

    def __init__(self, plane: Plane, keys: CurveKeys, address: str, hub_key: str) -> None:
        super().__init__(plane=asdict(plane), keys=asdict(keys), address=address, hub_key=hub_key)


def _endpoint(job: dict[str, Any]) -> ZmqHub | ZmqSpoke:
    plane, keys = Plane(**job["plane"]), CurveKeys(**job["keys"])
    if "allowed" in job:
        hub = ZmqHub("tcp://127.0.0.1:*", keys, "hub", job["allowed"], plane=plane)
        print(hub.address, flush=True)  # noqa: T201
        return hub
    spoke = ZmqSpoke(job["address"], job["hub_key"], keys, "spoke", hub_name="hub", plane=plane)
    spoke.send(Shutdown(1), timeout_s=_WAIT_S)
    return spoke


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _main() -> None:
    with _endpoint(json.loads(sys.stdin.readline())) as endpoint:
        if not sys.stdin.readline():
            return
        threading.Thread(target=_end_with_parent, daemon=True).start()
        while True:
            with contextlib.suppress(PeerError):
                envelope = endpoint.recv(1.0)
                if envelope is not None:
                    to = envelope.sender if isinstance(endpoint, ZmqHub) else None
                    endpoint.send(envelope.message, to=to, timeout_s=0.0)


if __name__ == "__main__":
    _main()
