"""Connections are cut by their descriptors, which may be something else by then."""

import os
import socket
import tempfile

from tpiedge.transport.cutting import Cutter, connection_of


def opened() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_connection_is_cut() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            before = opened()
            connection = connection_of(other.fileno())
            assert connection is not None
            Cutter().cut(connection)
            assert one.recv(1) == b""
            assert opened() == before


def test_a_file_that_has_the_descriptor_by_now_is_left_alone() -> None:
    with tempfile.TemporaryFile() as file:
        before = opened()
        connection = connection_of(file.fileno())
        assert connection is not None
        Cutter().cut(connection)
        Cutter().cut(connection._replace(inode=connection.inode + 1))
        assert opened() == before
        file.write(b"still there")
