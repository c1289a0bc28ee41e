"""A hub in a process of its own, which receives nothing until it is told to: what that costs, and what it takes.

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
from typing import Self

import psutil

from tpiedge.errors import PeerError
from tpiedge.transport.endpoint import Plane
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke

_WAIT_S = 20.0


class HubProcess:
    """A context manager. `serve` lets it answer every message with the same; till then it only exists. `spoke(name)`
    connects to it, for "flooder" and "other"."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._keys = {name: CurveKeys.generate() for name in ("hub", "flooder", "other")}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.hub_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        allowed = {self._keys[name].public: name for name in ("flooder", "other")}
        self._say(json.dumps({"plane": asdict(plane), "keys": asdict(self._keys["hub"]), "allowed": allowed}))
        self._status = psutil.Process(self._child.pid)
        assert self._child.stdout is not None
        self.address = self._child.stdout.readline().strip()

    def spoke(self, name: str) -> ZmqSpoke:
        keys = self._keys[name]
        return ZmqSpoke(self.address, self._keys["hub"].public, keys, name, hub_name="hub", plane=self._plane)

    def serve(self) -> None:
        self._say("serve")

    @property
    def rss(self) -> int:
        return int(self._status.memory_info().rss)

    @property
    def peak_rss(self) -> int:
        lines = Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            assert self._child.poll() is None, f"ended with {self._child.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._child:
            assert self._child.stdin is not None
            self._child.stdin.close()
            try:
                self._child.wait(_WAIT_S)
            finally:
                self._child.kill()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _main() -> None:
    job = json.loads(sys.stdin.readline())
    plane, keys = Plane(**job["plane"]), CurveKeys(**job["keys"])
    with ZmqHub("tcp://127.0.0.1:*", keys, "hub", job["allowed"], plane=plane) as hub:
        print(hub.address, flush=True)  # noqa: T201
        if not sys.stdin.readline():
            return
        threading.Thread(target=_end_with_parent, daemon=True).start()
        while True:
            with contextlib.suppress(PeerError):
                envelope = hub.recv(1.0)
                if envelope is not None:
                    hub.send(envelope.message, to=envelope.sender, timeout_s=0.0)


if __name__ == "__main__":
    _main()
