"""Becomes a command inside a device: `python -I -S enter.py NAMESPACE [MEMBERS...] -- COMMAND...`.

NAMESPACE is a network namespace's file. MEMBERS are the `cgroup.procs` files of control groups. The process keeps its
id, signals and standard input. This file imports only the standard library, to start fast.
"""

import ctypes
import os
import sys

_CLONE_NEWNET = 0x40000000
_CANNOT_ENTER = 125
_CANNOT_RUN = 126
_NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    """Becomes the command. Returns a status only after a failure."""
    border = arguments.index("--")
    (namespace, *groups), command = arguments[:border], arguments[border + 1 :]
    try:
        for members in groups:
            _write_own_id(members)
        _enter(namespace)
    except OSError as error:
        return _fail(
            f"cannot enter the device: {error.filename or namespace}: {error.strerror}", _CANNOT_ENTER
        )
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        return _fail(f"no such command: {command[0]}", _NOT_FOUND)
    except OSError as error:
        return _fail(f"cannot run {command[0]}: {error.strerror}", _CANNOT_RUN)


def _write_own_id(members: str) -> None:
    with open(members, "w") as file:
        file.write(str(os.getpid()))


def _enter(namespace: str) -> None:
    # Python has os.setns from 3.12 on only.
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), namespace)


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"tpiedge: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
