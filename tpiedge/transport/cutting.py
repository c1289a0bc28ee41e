"""Ends TCP connections of a ZeroMQ socket by shutting down the file descriptor. ZeroMQ has no call for that."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

FAREWELL_S: Final = 0.25
"""Time for the last message to leave, on a busy machine too."""


class TcpConnection(NamedTuple):
    """A connection's file descriptor and inode, and the peer's address. Descriptors are reused; inodes tell connections
    apart."""

    descriptor: int
    inode: int
    address: str = ""


def connection_of(descriptor: str | int, port: int, address: str = "") -> TcpConnection | None:
    """Returns the open TCP connection of `descriptor`, if `port` and `address` match."""
    with contextlib.suppress(OSError, ValueError):
        connection = TcpConnection(int(descriptor), os.fstat(int(descriptor)).st_ino)
        with borrowed(connection) as lent:
            own, other = lent.getsockname(), lent.getpeername()
        if not isinstance(own, tuple) or own[1] != port or not is_open(connection):
            return None
        if address.partition("%")[0] in ("", other[0].partition("%")[0]):
            return connection._replace(address=other[0])
    return None


def is_open(connection: TcpConnection) -> bool:
    with contextlib.suppress(OSError):
        return os.fstat(connection.descriptor).st_ino == connection.inode
    return False


@contextlib.contextmanager
def borrowed(connection: TcpConnection) -> Iterator[socket.socket]:
    """Yields the connection's socket without owning it. libzmq may close it meanwhile. Raises OSError."""
    if not is_open(connection):
        raise OSError(errno.EBADF, "the connection is gone")
    lent = socket.socket(fileno=connection.descriptor)
    try:
        yield lent
    finally:
        lent.detach()


def cut(connection: TcpConnection) -> None:
    # To take over the routing id instead leaves an engine without a pipe, which libzmq 4.3.5 does not survive.
    with contextlib.suppress(OSError), contextlib.ExitStack() as ends:
        # A duplicate stays the same file while libzmq closes and opens others.
        double = os.dup(connection.descriptor)
        ends.callback(os.close, double)
        if os.fstat(double).st_ino == connection.inode:
            lent = socket.socket(fileno=double)  # OSError where a file has the descriptor by now
            ends.callback(lent.detach)
            lent.shutdown(socket.SHUT_RDWR)
