"""A command in a container as if it ran here, against a container of a few lines."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import ResourceError
from tpiedge.lab.testbed.containers.engine import Ended
from tpiedge.lab.testbed.containers.terminal import Demultiplexer, run_here

LIMIT_S = 20.0


def piece(number: int, data: bytes) -> bytes:
    return bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


class Playing:
    """An engine whose command is `play`, on a thread of its own, with the other end of the connection."""

    def __init__(self, play: Callable[[socket.socket], None], status: int = 0, gone: bool = False) -> None:
        self.signalled = threading.Event()
        self.ran: list[tuple[str, ...]] = []
        self._play, self._status, self._gone = play, status, gone

    @contextmanager
    def open(self, container: str, command, terminal: bool) -> Iterator[tuple[str, socket.socket]]:
        here, there = socket.socketpair()
        there.settimeout(LIMIT_S)
        thread = threading.Thread(target=self._command, args=(there,))
        thread.start()
        try:
            yield "made", here
        finally:
            here.close()
            thread.join()

    def run(self, container: str, command) -> Ended:
        self.ran.append(tuple(command))
        self.signalled.set()
        return Ended(0, "", "")

    def _command(self, there: socket.socket) -> None:
        with there:
            if there.recv(1) == b"\n":
                self._play(there)

    def status_of_command(self, made: str) -> int:
        if self._gone:
            raise ResourceError("no such container")
        return self._status


def test_the_line_with_the_id_is_not_output(capfd: pytest.CaptureFixture[str]) -> None:
    """However it arrives, and whatever comes before it on the other output."""

    def play(there: socket.socket) -> None:
        for part in (piece(2, b"warned\n"), piece(1, b"4"), piece(1, b"2\nfirst\n7\n"), piece(1, b"8\n")):
            there.sendall(part)

    assert run_here(Playing(play, status=3), "c", ("true",)) == 3
    assert capfd.readouterr() == ("first\n7\n8\n", "warned\n")


def test_what_no_id_precedes_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    engine = Playing(lambda there: there.sendall(piece(1, b"exec failed: no sh\n")), status=126)
    assert run_here(engine, "c", ("true",)) == 126
    assert capfd.readouterr().out == "exec failed: no sh\n"


@pytest.mark.parametrize("early", [True, False])
def test_signals_are_the_commands_also_those_that_come_too_early(early: bool) -> None:
    engine: Playing

    def play(there: socket.socket) -> None:
        if early:
            os.kill(os.getpid(), signal.SIGTERM)
        there.sendall(piece(1, b"42\n"))
        if not early:
            os.kill(os.getpid(), signal.SIGTERM)
        engine.signalled.wait(LIMIT_S)

    engine = Playing(play, status=143)
    before = signal.getsignal(signal.SIGTERM)
    assert run_here(engine, "c", ("sleep", "9")) == 143
    assert [command[-2:] for command in engine.ran] == [("TERM", "42")]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_whose_container_is_gone_was_killed() -> None:
    assert run_here(Playing(lambda there: None, gone=True), "c", ("true",)) == 137


PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8)


@given(PIECES, st.lists(st.integers(1, 30), min_size=1))
def test_pieces_come_out_as_they_went_in_however_they_are_cut(pieces, cuts) -> None:
    wire, found = b"".join(piece(number, data) for number, data in pieces), []
    demultiplexer, step = Demultiplexer(terminal=False), 0
    while wire:
        length = cuts[step % len(cuts)]
        found += demultiplexer.feed(wire[:length])
        wire, step = wire[length:], step + 1
    assert found == pieces
