"""Runs a fork server: `python -m tpiedge.node.fork_server`.

The server imports torch once and forks a node for each bootstrap (`NodeBootstrap`). The server ends with its parent,
and the nodes end with the server. Standard input is a socket, on which the parent sends lines:

- The first line has the number of threads that measure the machine's speed; 0 means no measurement. The report goes
  to standard output.
- Every later line is a bootstrap. Three open files come with it: the node's standard input, its log, and a pipe for
  its pid and exit status.
"""

import contextlib
import os
import select
import signal
import socket
import sys

from tpiedge.launch.bootstrap import NodeBootstrap, NodeReport, from_line, to_line
from tpiedge.lifeline import die_with_parent, guard, raise_oom_score
from tpiedge.node.process import import_engine, run


class Forks:
    """Forks nodes. The process must have no second thread."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._received = b""
        self._files: list[int] = []
        #: By pid: the pipe that gets the process's exit status; -1 for the process that measures.
        self._told: dict[int, int] = {}
        self._woken, self._wakes = os.pipe()
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes)

    def next_line(self) -> bytes | None:
        """Returns the parent's next line, or None if the parent is gone. While it waits, reports ended processes."""
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._parent.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 512)
                self._tell_ends()
            if self._parent.fileno() in ready:
                data, files, _, _ = socket.recv_fds(self._parent, 65536, 16)
                if not data:
                    return None
                self._received += data
                self._files += files
        line, _, self._received = self._received.partition(b"\n")
        return line

    def measure(self, threads: int, pipe: int) -> None:
        """Forks a process that writes a measurement of the machine to `pipe`."""
        # In a process of its own, because measuring starts threads, which forks lose.
        if (pid := self._fork()) == 0:
            _report(threads, pipe)
            os._exit(0)
        self._told[pid] = -1
        os.close(pipe)

    def start_node(self) -> bool:
        """Forks a node. Returns True in the node, False in the server."""
        given, self._files = self._files[:3], self._files[3:]
        if len(given) < 3:
            sys.exit("cannot start a node: this machine lets too few files be open; raise 'ulimit -n'")
        lifeline, log, tells = given
        if (pid := self._fork()) == 0:
            for number, file in enumerate((lifeline, log, log)):
                os.dup2(file, number)
            for file in given:
                os.close(file)
            return True
        self._told[pid] = tells
        self._tell(tells, pid)
        for file in (lifeline, log):
            os.close(file)
        return False

    def _fork(self) -> int:
        try:
            pid = os.fork()
        except OSError as error:
            sys.exit(
                f"cannot start a node ({error.strerror}): is this machine short of memory or of processes?"
            )
        if pid == 0:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._parent.close()
            for file in (self._woken, self._wakes, *self._files, *self._told.values()):
                if file >= 0:
                    os.close(file)
        return pid

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended[0], os.waitstatus_to_exitcode(ended[1])
                tells = self._told.pop(pid)
                if tells >= 0:
                    self._tell(tells, status)
                    os.close(tells)
                elif status:
                    sys.exit(f"the process that measures this machine ended with status {status}")

    def _tell(self, pipe: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has given the node up
            os.write(pipe, b"%d\n" % number)


def main() -> int:
    raise_oom_score(500)
    die_with_parent()
    with socket.socket(fileno=os.dup(0)) as parent:
        server = Forks(parent)
        if (line := server.next_line()) is None:
            return 0
        threads = from_line(line, int)
        # A descriptor for the report alone; what libraries print goes to the log.
        pipe = os.dup(1)
        os.dup2(2, 1)
        import_engine()
        if threads:
            server.measure(threads, pipe)
        while (line := server.next_line()) is not None:
            if server.start_node():
                break
        else:
            os._exit(0)  # the nodes end with it
    guard(lambda: os._exit(143))  # as by SIGTERM
    return run(from_line(line, NodeBootstrap))


def _report(threads: int, pipe: int) -> None:
    from tpiedge.kernels.shared_library import NO_ISA, kernel_library
    from tpiedge.node.capacity import measure

    library = kernel_library()
    report = NodeReport(library.isa if library else NO_ISA, measure(threads))
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb") as stream:
        stream.write(to_line(report) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
