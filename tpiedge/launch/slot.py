"""Keeps a machine's fork server and at most one node, which the server forks."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tpiedge.clock import Clock
from tpiedge.errors import ResourceError, TpiedgeError
from tpiedge.kv.page_folder import PageFolder
from tpiedge.launch.bootstrap import NodeBootstrap, NodeReport, from_line, to_line
from tpiedge.launch.child import Child, ForkedChild
from tpiedge.launch.offer import LOOK_S, MemoryOffer

NODE_MODULE = "tpiedge.node.process"
FORK_SERVER_MODULE = "tpiedge.node.fork_server"


def node_environment(threads: int) -> dict[str, str]:
    """Returns environment variables that limit torch's threads."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class ForkServer(Child):
    """A process that imports torch and forks nodes. If `measure`, it also measures the machine."""

    def __init__(self, threads: int, *, measure: bool = False) -> None:
        to_measure = to_line(threads if measure else 0)
        super().__init__(FORK_SERVER_MODULE, to_measure, node_environment(threads), reports=measure)

    def report(self, deadline: float) -> NodeReport | None:
        """Returns the measurement, or None at `deadline` (monotonic seconds). Raises the errors of
        Child.read_report."""
        line = self.read_report(deadline)
        return None if line is None else from_line(line, NodeReport)

    def start_node(self, bootstrap: NodeBootstrap) -> Child:
        """Makes the server fork a node. Does not wait. Raises ResourceError."""
        return ForkedChild(self, to_line(bootstrap))


_log = logging.getLogger(__name__)


@dataclass(eq=False)
class NodeSlot:
    """A machine's node and fork server. One thread must make all calls. This thread must outlive the node.
    `_usable_memory` must not block. `_say` gets a line for each change of the offer `memory`. Until `own_pages` is
    called, another process may use `pages`."""

    threads: int
    memory: MemoryOffer
    _usable_memory: Callable[[], int]
    _clock: Clock
    _say: Callable[[str], None]
    pages: PageFolder = field(kw_only=True)
    _server: ForkServer | None = None
    _child: Child | None = None
    _planned_bytes: int = 0  # planned peak memory of the last node; 0 before the first
    _owns_pages: bool = False

    def __post_init__(self) -> None:
        self._weighed = self._clock.now()  # when it last looked at the usable memory
        self._sweep()

    def own_pages(self) -> None:
        self._owns_pages = True
        self._sweep()

    @property
    def memory_bytes(self) -> int:
        return self.memory.offered_bytes

    @property
    def pid(self) -> int | None:
        """The node's process id; None before the fork."""
        return None if self._child is None else self._child.pid or None

    def weigh(self) -> None:
        """Adapts the offer to the usable memory, at most every LOOK_S."""
        now = self._clock.now()
        if now - self._weighed >= LOOK_S:
            self._weighed = now
            self._tell(self.memory.look(self._usable_memory(), now))

    def _tell(self, changed: str) -> None:
        if changed:
            self._say(changed)

    def warm(self, *, measure: bool = False) -> ForkServer:
        """Returns the fork server; starts one if none runs. Raises ResourceError."""
        if self._server is None or self._server.exit_cause() is not None:
            self._cool()
            self._server = ForkServer(self.threads, measure=measure)
        return self._server

    def warm_if_possible(self) -> None:
        try:
            self.warm()
        except (OSError, ResourceError) as error:
            _log.warning("cannot start a node ahead of its use: %s", error)

    def start(self, bootstrap: NodeBootstrap, planned_bytes: int) -> None:
        """Replaces the node. `planned_bytes`: the planned peak memory. Raises ResourceError."""
        self.stop()
        folder, keep_bytes, park_bytes = str(self.pages.path), self.pages.keep_bytes, self.pages.park_bytes
        bootstrap = replace(bootstrap, pages=folder, keep_bytes=keep_bytes, park_bytes=park_bytes)
        self._child = self.warm().start_node(bootstrap)
        self._planned_bytes = planned_bytes

    def exit_cause(self) -> str | None:
        return None if self._child is None else self._child.exit_cause()

    def log_tail(self) -> str:
        return "" if self._child is None else self._child.log_tail()

    def stop(self, grace_s: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ends the node; kills it after `grace_s`. May change the offer. Idempotent."""
        if self._child is not None:
            if self._child.out_of_memory:
                now = self._clock.now()
                self._tell(self.memory.ran_out(self._planned_bytes, self._usable_memory(), now))
            self._child.stop(time.monotonic() + grace_s, meanwhile)
            self._child = None

    def close(self) -> None:
        self.stop()
        self._cool()
        self._sweep()

    def _cool(self) -> None:
        if self._server is not None:
            self._server.stop(0.0)
            self._server = None

    def _sweep(self) -> None:
        """Deletes pages that no node will bring."""
        if self._owns_pages:
            try:
                self.pages.clear_unusable()
            except TpiedgeError as error:
                _log.warning("%s", error)
