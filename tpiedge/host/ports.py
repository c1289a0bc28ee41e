"""Whether a TCP port of this computer can be had, and who has it otherwise."""

import errno
import os
import socket

import psutil

__all__ = ["holder", "port_state"]

_ANYWHERE = "0.0.0.0"
_PROGRAM = "tpiedge"


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


def holder(port: int) -> str:
    """'another tpiedge master, pid 123', 'nginx, pid 123', or 'another program' where the system does not say."""
    try:
        pids = {
            found.pid
            for found in psutil.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port and found.pid
        }
    except (psutil.Error, OSError):
        return "another program"
    return _described(min(pids)) if pids else "another program"


def _described(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        words, name = process.cmdline(), process.name()
    except (psutil.Error, OSError):
        return f"another program, pid {pid}"
    for place, word in enumerate(words[:-1]):
        if os.path.basename(word) == _PROGRAM and words[place + 1].isalpha():
            return f"another tpiedge {words[place + 1]}, pid {pid}"
    return f"{name}, pid {pid}"
