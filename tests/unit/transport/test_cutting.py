import os
import socket
import tempfile

from tpiedge.transport.cutting import TcpConnection, connection_of, cut

HOST = "127.0.0.1"


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
            connection = connection_of(other.fileno(), server.getsockname()[1], HOST)
            assert connection is not None
            cut(connection)
            assert one.recv(1) == b""
            assert opened() == before


def test_cut_spares_a_file_with_a_reused_descriptor() -> None:
    with tempfile.TemporaryFile() as file:
        before = opened()
        connection = TcpConnection(file.fileno(), os.fstat(file.fileno()).st_ino)
        cut(connection)
        cut(connection._replace(inode=connection.inode + 1))
        assert opened() == before
        file.write(b"still there")


def test_other_descriptors_are_not_mistaken_for_the_connection() -> None:
    with (
        socket.create_server((HOST, 0)) as ours,
        socket.create_server((HOST, 0)) as another,
        socket.create_connection(ours.getsockname()),
        socket.create_connection(another.getsockname()),
        tempfile.TemporaryFile() as file,
        socket.socket(socket.AF_UNIX) as unix,
        ours.accept()[0] as connection,
        another.accept()[0] as other,
    ):
        port, before = ours.getsockname()[1], opened()
        found = connection_of(str(connection.fileno()), port)
        assert found is not None
        assert found.address == HOST
        for descriptor in (other, file, unix, ours):
            assert connection_of(descriptor.fileno(), port) is None
        assert connection_of(connection.fileno(), port, "10.0.0.5") is None
        assert connection_of(9999, port) is None
        assert opened() == before
