"""Ends TCP connections of a ZeroMQ socket, which has no call for it.

libzmq says of every message by which file descriptor it came; shutting that one down is what libzmq understands best,
a peer that hangs up. (Taking over the peer's routing id instead leaves an engine without a pipe behind, which libzmq
4.3.5 does not survive: it stops reading, and aborts the process when a heartbeat is due after the peer has hung up.)
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

FAREWELL_S: Final = 0.25
"""For the last word to leave, also where the machine is busy."""


class TcpConnection(NamedTuple):
    """A file descriptor, and the socket that it was when a message came: numbers are used again."""

    descriptor: int
    inode: int


def connection_of(descriptor: str | int, port: int, address: str = "") -> TcpConnection | None:
    """From a frame's property `__fd`, or an event's value; None where the connection is gone already.

    Another one may have its descriptor by then, the API's perhaps: what is no TCP connection to this `port`, from this
    IP address if one is given, is not it.
    """
    with contextlib.suppress(OSError, ValueError):
        connection = TcpConnection(int(descriptor), os.fstat(int(descriptor)).st_ino)
        with borrowed(connection) as lent:
            own, other = lent.getsockname(), lent.getpeername()
        if not isinstance(own, tuple) or own[1] != port or not is_open(connection):
            return None
        if address.partition("%")[0] in ("", other[0].partition("%")[0]):
            return connection
    return None


def is_open(connection: TcpConnection) -> bool:
    """Whether libzmq has not closed it yet."""
    with contextlib.suppress(OSError):
        return os.fstat(connection.descriptor).st_ino == connection.inode
    return False


@contextlib.contextmanager
def borrowed(connection: TcpConnection) -> Iterator[socket.socket]:
    """The socket itself, for a short look: libzmq may close it at any time. Raises OSError where it has."""
    if not is_open(connection):
        raise OSError(errno.EBADF, "the connection is gone")
    lent = socket.socket(fileno=connection.descriptor)
    try:
        yield lent
    finally:
        lent.detach()


def cut(connection: TcpConnection) -> None:
    """Does nothing where the connection is gone."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as ends:
        # Stays the same socket, or whatever it is, whatever libzmq closes and opens meanwhile.
        double = os.dup(connection.descriptor)
        ends.callback(os.close, double)
        if os.fstat(double).st_ino == connection.inode:
            lent = socket.socket(fileno=double)  # OSError where a file has the descriptor by now
            ends.callback(lent.detach)
            lent.shutdown(socket.SHUT_RDWR)
