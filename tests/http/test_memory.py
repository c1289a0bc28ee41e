import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.http.served import CONTEXT
from tpiedge.api.limits import Limits
from tpiedge.units import MIB

AT_ONCE = 6
LIMIT_S = 20.0
ALLOWED = 20 * MIB
LARGEST = Limits.of_context(CONTEXT).body_bytes
HEAD = b'{"model": "babbler", "prompt": '


class Served:
    """A server in a child, and the peak of its memory since `forget`."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        self.url = child.stdout.readline().strip()
        self._process = Path(f"/proc/{child.pid}")

    def forget(self) -> int:
        """Begin a new peak; what is in use now."""
        (self._process / "clear_refs").write_text("5")
        return self.peak

    @property
    def peak(self) -> int:
        (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", (self._process / "status").read_text(), re.MULTILINE)
        return int(peak) * 1024


@pytest.fixture
def served(server_process):
    return Served(server_process)


def post(served, body):
    try:
        headers = {"Content-Type": "application/json"}
        return httpx.post(
            f"{served.url}/v1/completions", content=body(), headers=headers, timeout=LIMIT_S
        ).status_code
    except httpx.TransportError:
        return 0


def several(served, body):
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return set(threads.map(lambda _: post(served, body), range(AT_ONCE)))


def filled(unit, end=b"}", size=LARGEST):
    return HEAD + unit * ((size - len(HEAD) - len(end)) // len(unit)) + end


def chunks():
    yield HEAD + b'"'
    for _ in range(5):
        yield b"x" * MIB


def good():
    return json.dumps({"model": "babbler", "prompt": "once upon a time"}).encode()


HOSTILE = {
    "five megabytes, announced": (lambda: HEAD + b'"' + b"x" * (5 * MIB) + b'"}', {413}),
    "five megabytes in chunks": (chunks, {413}),
    "the largest text": (lambda: filled(b"x", b'"}').replace(b": x", b': "', 1), {400}),
    "as many values as go in": (lambda: filled(b"[],", b"[]}"), {400}),
    "nothing but quotes and commas": (lambda: filled(b'"",', b"}"), {400}),
    "the longest text that is tokenized": (
        lambda: json.dumps({"model": "babbler", "prompt": "a " * (CONTEXT * 32)}).encode(),
        {400},
    ),
    "wide characters": (
        lambda: json.dumps({"model": "babbler", "prompt": "\N{GRINNING FACE}" * 60_000}).encode(),
        {400},
    ),
}


@pytest.mark.slow  # a server for each body, so that none begins with what another one left
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="system: the peak is read from /proc")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.fault("H2", "refused, with little memory")
def test_hostile_bodies_cost_little_memory(served, name):
    body, statuses = HOSTILE[name]
    assert several(served, good) <= {200, 429}  # threads and libraries are there now
    before = served.forget()
    assert several(served, body) - {429} <= statuses
    grown = served.peak - before
    assert grown < ALLOWED, f"{grown / 1e6:.1f} MB"
    assert post(served, good) == 200
