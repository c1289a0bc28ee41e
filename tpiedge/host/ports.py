"""Whether a TCP port of this computer can be had, and who has it otherwise."""

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import psutil

_ANYWHERE = "0.0.0.0"
_PROGRAM = "tpiedge"


@dataclass(frozen=True)
class Holder:
    """Who listens on a port: 'another tpiedge master, pid 123', 'nginx, pid 123', or 'another program' if unknown.

    `verb`: 'master' of `tpiedge master` and of the node that it started; empty for other programs.
    """

    words: str
    verb: str = ""


def port_state(port: int, host: str = _ANYWHERE) -> str:
    """'free', 'in use', or why it cannot be had. Nothing is ever accepted on it. `host`: a numeric address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: only a listener counts
        try:
            probe.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
            return "free"
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)


def holder(port: int) -> Holder:
    """Who listens on the TCP port."""
    try:
        pids = {
            found.pid
            for found in psutil.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port and found.pid
        }
    except (psutil.Error, OSError):
        return Holder("another program")
    return _described(min(pids)) if pids else Holder("another program")


def _described(pid: int) -> Holder:
    try:
        process = psutil.Process(pid)
        unknown = Holder(f"{process.name()}, pid {pid}")
    except (psutil.Error, OSError):
        return Holder(f"another program, pid {pid}")
    with contextlib.suppress(psutil.Error, OSError):  # as for the words of another user's parent
        for one in (process, process.parent()):  # a node is the child of its verb
            if one is not None and (verb := _verb(one.cmdline())):
                return Holder(f"another tpiedge {verb}, pid {one.pid}", verb)
    return unknown


def _verb(words: Sequence[str]) -> str:
    """The X of `tpiedge X`; empty for other programs."""
    for word, following in pairwise(words):
        if os.path.basename(word) == _PROGRAM and following.isalpha():
            return following
    return ""
