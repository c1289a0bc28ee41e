"""The connection to a command in a container: which bytes are output, which are errors, however they arrive."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.testbed.containers.stream import CommandStream, Demultiplexer

PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8)


def framed(pieces: list[tuple[int, bytes]]) -> bytes:
    return b"".join(bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for number, data in pieces)


@given(PIECES, st.lists(st.integers(1, 30), min_size=1))
def test_pieces_come_out_as_they_went_in_however_they_are_cut(pieces, cuts) -> None:
    wire, found = framed(pieces), []
    demultiplexer = Demultiplexer(terminal=False)
    step = 0
    while wire:
        length = cuts[step % len(cuts)]
        found += demultiplexer.feed(wire[:length])
        wire, step = wire[length:], step + 1
    assert found == pieces


def test_at_a_terminal_there_is_nothing_but_output() -> None:
    demultiplexer = Demultiplexer(terminal=True)
    assert demultiplexer.feed(b"\x02\0\0\0\0\0\0\1x") == [(1, b"\x02\0\0\0\0\0\0\1x")]
    assert demultiplexer.feed(b"") == []


@pytest.fixture
def pair():
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_nobody_waits_for_a_reader(pair) -> None:
    here, _ = pair
    stream = CommandStream(here, False, status=lambda: 0, resize=lambda rows, columns: None)
    sent = 0
    while more := stream.send(bytes(1 << 16)):
        sent += more
    assert sent > 0


def test_input_can_end_before_output(pair) -> None:
    here, there = pair
    stream = CommandStream(here, False, status=lambda: 0, resize=lambda rows, columns: None)
    assert stream.send(b"question") == 8
    stream.end_input()
    assert (there.recv(100), there.recv(100)) == (b"question", b"")
    there.sendall(framed([(2, b"answer")])[:-1])
    assert stream.receive() == []
    there.sendall(b"r")
    assert stream.receive() == [(2, b"answer")]
    there.close()
    assert stream.receive() is None
