"""A command on a device that is a container, as if it ran here: input, output, signals, exit status, the terminal."""

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

from tpiedge.errors import ResourceError, TpiedgeError
from tpiedge.lab.testbed.containers.engine import ContainerEngine

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GONE = 137
_HEADER = 8
_OUT = 1
_RECEIVE_BYTES = 65536
#: It waits for a line, so that nothing it says is earlier than the connection; then says its process's id, and becomes
#: the command.
_ANNOUNCED = 'read -r go && echo $$ && exec "$@"'
#: Before it, at a terminal of a known size: that which an engine is told may come to nothing while a command starts.
_SIZED = "stty rows {} cols {} 2>/dev/null; "
_SIGNAL = 'kill -s "$0" "$1"'


class Demultiplexer:
    """Pieces of (stream, data) out of what arrives: each has a header of the stream's number (1: output, 2: error),
    three zeros and the length. At a terminal there are no headers, and all is output."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._waiting = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """What is complete. A piece may come in parts of several calls."""
        if self._terminal:
            return [(_OUT, data)] if data else []
        self._waiting += data
        pieces = []
        while len(self._waiting) >= _HEADER:
            end = _HEADER + int.from_bytes(self._waiting[4:_HEADER], "big")
            if len(self._waiting) < end:
                break
            pieces.append((self._waiting[0], self._waiting[_HEADER:end]))
            self._waiting = self._waiting[end:]
        return pieces


def run_here(engine: ContainerEngine, container: str, command: Sequence[str]) -> int:
    """Its exit status. Signals that this process gets meanwhile are the command's, but SIGKILL: then it goes on, until
    its container ends. Raises ResourceError."""
    terminal = _at_terminal()
    size = _terminal_size() if terminal else None
    sized = _SIZED.format(size.lines, size.columns) if size else ""
    announced = ("sh", "-c", sized + _ANNOUNCED, "sh", *command)
    with engine.open(container, announced, terminal) as (made, connection), _wakeups() as wakeups:
        connection.sendall(b"\n")
        connection.setblocking(False)  # what waits here does not read
        session = _Session(engine, container, made, connection, wakeups, terminal)
        with _raw_terminal() if terminal else contextlib.nullcontext():
            session.run()
        try:
            return engine.status_of_command(made)
        except ResourceError:
            return _GONE  # with its container


class _Session:
    def __init__(
        self,
        engine: ContainerEngine,
        container: str,
        made: str,
        connection: socket.socket,
        wakeups: int,
        terminal: bool,
    ) -> None:
        self._engine = engine
        self._container = container
        self._made = made
        self._connection = connection
        self._pieces = Demultiplexer(terminal)
        self._wakeups = wakeups
        self._terminal = terminal
        self._reads, self._input = _readable_input(), b""
        self._start: bytes | None = b""  # what came before the line with the id; None: it came
        self._pid = ""
        self._early: list[int] = []

    def run(self) -> None:
        """Passes bytes on until the command's outputs are closed."""
        while True:
            waited: list[int | socket.socket] = [self._connection, self._wakeups]
            if self._reads and not self._input:
                waited.append(0)
            ready, writable, _ = select.select(waited, [self._connection] if self._input else [], [])
            if self._wakeups in ready:
                self._signalled(os.read(self._wakeups, 64))
            if 0 in ready:
                self._read_input()
            if writable:
                self._send_input()
            if self._connection in ready and not self._copy_output():
                return

    def _read_input(self) -> None:
        self._input = os.read(0, _RECEIVE_BYTES)
        if not self._input:
            self._reads = False
            with contextlib.suppress(OSError):  # the command has ended
                self._connection.shutdown(socket.SHUT_WR)

    def _send_input(self) -> None:
        try:
            self._input = self._input[self._connection.send(self._input) :]
        except BlockingIOError:
            return
        except OSError:  # the command has ended
            self._reads, self._input = False, b""

    def _copy_output(self) -> bool:
        try:
            received = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:  # the engine ended
            return False
        for number, data in self._pieces.feed(received):
            try:
                _write(number, data if number != _OUT or self._start is None else self._without_id(data))
            except BrokenPipeError:  # no reader: the command's own business too
                self._signal(signal.SIGPIPE)
                return False
        return bool(received)

    def _without_id(self, data: bytes) -> bytes:
        """What follows the line with the id of the command's process."""
        lines = (self._start or b"") + data
        line, end, rest = lines.lstrip().partition(b"\n")
        if not end:
            self._start = lines
            return b""
        if not line.strip().isdigit():  # it has not come so far: what an engine says instead
            self._start = None
            return lines
        self._start, self._pid = None, line.strip().decode()
        self._resize()  # a container may have no stty
        for number in self._early:
            self._signal(number)
        return rest

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGWINCH:
                self._resize()
            else:
                self._signal(number)

    def _signal(self, number: int) -> None:
        if not self._pid:
            self._early.append(number)
            return
        name = signal.Signals(number).name.removeprefix("SIG")
        with contextlib.suppress(TpiedgeError):  # it has ended
            self._engine.run(self._container, ("sh", "-c", _SIGNAL, name, self._pid))

    def _resize(self) -> None:
        size = _terminal_size() if self._terminal else None
        if size:
            with contextlib.suppress(TpiedgeError):
                self._engine.resize(self._made, size.lines, size.columns)


@contextlib.contextmanager
def _wakeups() -> Iterator[int]:
    """A descriptor from which the numbers of signals come, instead of what they would do."""
    reader, writer = os.pipe()  # macOS has no pipe2; no other process inherits them
    for end in (reader, writer):
        os.set_blocking(end, False)
    handled = (*_SIGNALS, signal.SIGWINCH)
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    previous = signal.set_wakeup_fd(writer)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Keys are the command's, Ctrl-C too."""
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _at_terminal() -> bool:
    return _in_foreground() and sys.stdout.isatty()


def _terminal_size() -> os.terminal_size | None:
    """As it is now, whatever the environment says; None where it is not known."""
    size = os.get_terminal_size(0)
    return size if all(size) else None


def _in_foreground() -> bool:
    """Whether standard input is a terminal that this process may use."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _readable_input() -> bool:
    """A background command would be stopped by its terminal; without standard input there is nothing."""
    try:
        return not os.isatty(0) or _in_foreground()
    except OSError:
        return False


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]
