"""What a node process is told on its standard input, where secrets never appear in arguments, and what it reports:
one line of JSON each way. With the intervals and limits of a cluster's liveness, and which silences count.
"""

import json
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tpiedge.errors import ProtocolError
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.epochs import Capacity

_Line = TypeVar("_Line")


@dataclass(frozen=True)
class Timing:
    """All in seconds. A loss is noticed within timeout_s + heartbeat_s: below 2 s with the defaults."""

    heartbeat_s: float = 0.3
    timeout_s: float = 1.5
    stall_s: float = 60.0
    start_s: float = 120.0


class OwnStalls:
    """`heartbeat_s`: from one heartbeat to the next; one that is later than that is late."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self.excuse = False
        """Whether nobody's silence is to be judged until the next heartbeat."""

    def beat(self, late_s: float) -> bool:
        """A heartbeat is sent, so many seconds after it was due. Returns `excuse`."""
        self.excuse = late_s > self._heartbeat_s and not self.excuse
        return self.excuse


@dataclass(frozen=True)
class NodeBootstrap:
    """The master's address and this node's identity.

    The node listens for others at `data_address`. `pack` is this machine's folder of the model; "" if the master's
    Assign names it. `trace` is the file that the node's trace is written to at its end, `locker` the folder where it
    finds and leaves keys and values for other epochs, encrypted with `locker_key` (hexadecimal digits); "" for none.
    They come from a parent on this computer only: no message of a master can name a file to write.
    """

    rank: int
    epoch: int
    control_address: str
    master_key: str
    keys: CurveKeys
    threads: int
    timing: Timing
    data_address: str = "tcp://127.0.0.1:*"
    pack: str = ""
    trace: str = ""
    locker: str = ""
    locker_key: str = field(default="", repr=False)


def control_name(rank: int, epoch: int) -> str:
    """The name of a node on the control plane; it differs in every epoch."""
    return f"node-{rank}.{epoch}"


def node_of(peer: str) -> tuple[int | None, int]:
    """(rank, epoch) of a name that `control_name` made; (None, 0) for any other name."""
    if not peer.startswith("node-"):
        return None, 0
    rank, _, epoch = peer.removeprefix("node-").partition(".")
    return int(rank), int(epoch)


NOT_MEASURED = Capacity(0, 0.0, 0.0)


@dataclass(frozen=True)
class StandbyOrder:
    """First line to a node: get ready with `threads` threads, `measure` if true, report, wait for the bootstrap."""

    measure: bool
    threads: int


@dataclass(frozen=True)
class NodeReport:
    """A standby node is ready: torch is imported. `isa` is the native kernels' or, without them, "torch"."""

    cpu: str
    isa: str
    capacity: Capacity


def to_line(said: NodeBootstrap | StandbyOrder | NodeReport) -> bytes:
    # Not by msgspec, which refuses a path that is not UTF-8, as Linux has.
    return json.dumps(msgspec.to_builtins(said)).encode()


def from_line(line: bytes, kind: type[_Line]) -> _Line:
    """Raises ProtocolError if `line` is not what `to_line` wrote of that kind."""
    try:
        return msgspec.convert(json.loads(line), kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"a line between a node and its parent is no {kind.__name__} ({type(error).__name__}): start nodes with "
            "'tpiedge run'"
        ) from None
