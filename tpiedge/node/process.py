"""Entry of a node process: `python -m tpiedge.node.process`.

It holds on to its lifeline before the heavy imports, so that a node whose parent dies meanwhile is gone at once. The
first line on standard input is the bootstrap, or a StandbyOrder: then the process imports and measures, reports on
its standard output and waits for the bootstrap on the second line.
"""

import contextlib
import gc
import os
import queue
import sys
import types

from tpiedge.launch.bootstrap import NOT_MEASURED, NodeBootstrap, NodeReport, StandbyOrder
from tpiedge.lifeline import guard, raise_oom_score

_META_KERNELS = "torch._meta_registrations"


class Lines:
    """Bytes in, as they come; whole lines out, to another thread."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines.put(line)

    @property
    def waiting(self) -> bool:
        """Whether `next` would return at once."""
        return not self._lines.empty()

    def next(self) -> bytes:
        """The next line, without its end. Waits for it: the lifeline ends a process that waits in vain."""
        return self._lines.get()


def main() -> int:
    """The exit status is that of the error that ended the node, or 0."""
    # Others take up a node's work, but nobody that of the agent or master beside it.
    raise_oom_score(500)
    lines = Lines()
    guard(lambda: os._exit(143), on_bytes=lines.feed)  # as by SIGTERM
    line = lines.next()
    order = StandbyOrder.from_line(line)
    if order is None:
        _import_engine()
    else:
        _get_ready(order, lines)
        line = lines.next()
    bootstrap = NodeBootstrap.from_line(line)
    from tpiedge.node.lifetime import run

    return run(bootstrap)


def _import_engine() -> None:
    """Import torch and what a node computes with, for good: no later garbage collection looks through it all again,
    which takes a tenth of a second."""
    # torch's kernels for tensors that have no data, of use to its compilers alone: a fifth of the time that importing
    # it takes, and 18 MB in every node. A torch that knows no module of this name is not changed.
    sys.modules.setdefault(_META_KERNELS, types.ModuleType(_META_KERNELS))
    gc.disable()
    try:
        import tpiedge.node.lifetime  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def _get_ready(order: StandbyOrder, lines: Lines) -> None:
    """Do what takes long, then report. A bootstrap that is there already is not kept waiting by a measurement."""
    # A descriptor for the report alone; what libraries print goes to the log.
    pipe = os.dup(1)
    os.dup2(2, 1)
    _import_engine()
    from tpiedge.host.process import cpu_name, forget_peak_rss
    from tpiedge.kernels.shared_library import NO_ISA, kernel_library
    from tpiedge.node.capacity import measure

    capacity = measure(order.threads) if order.measure and not lines.waiting else NOT_MEASURED
    forget_peak_rss()  # a node is charged with what it uses, not with what its measurement used
    library = kernel_library()
    report = NodeReport(os.getpid(), cpu_name(), library.isa if library else NO_ISA, capacity)
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb") as stream:
        stream.write(report.to_line() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
