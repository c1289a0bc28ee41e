"""Packing children, started without the parent's side of it, to see what they do alone."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpiedge.pack.writing import parent
from tpiedge.pack.writing.child import PackRequest

_CHILD = ("-P", "-m", "tpiedge.pack.writing.child")


@contextmanager
def pack_child(
    request: PackRequest, program: Sequence[str] = _CHILD, **environment: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A child that was given the request. Its standard input stays open: the end of that would end it."""
    with subprocess.Popen(
        [sys.executable, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=parent._environment() | environment,
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
