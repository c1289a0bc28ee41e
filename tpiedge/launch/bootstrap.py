"""The first lines between a node and its parent, in JSON, and the times of heartbeats, silence and stalls."""

import json
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tpiedge.errors import ProtocolError
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.epochs import Capacity

_Line = TypeVar("_Line")


@dataclass(frozen=True)
class Timing:
    """Time limits. A silent peer is lost after `timeout_s`, a peer without progress after `stall_s`."""

    heartbeat_s: float = 0.3
    timeout_s: float = 1.5
    stall_s: float = 60.0
    start_s: float = 120.0


@dataclass(eq=False)
class OwnStalls:
    """Notices stalls of this process. While `stalled` is true, the silence of peers does not count."""

    _heartbeat_s: float
    stalled: bool = False

    def beat(self, late_s: float) -> bool:
        """Notes a heartbeat that came `late_s` late. Sets and returns `stalled`."""
        self.stalled = late_s > self._heartbeat_s and not self.stalled
        return self.stalled


@dataclass(frozen=True)
class NodeBootstrap:
    """The first line to a node. The parent process chooses the paths, because no master may name a file to write."""

    rank: int
    epoch: int
    control_address: str
    master_key: str
    keys: CurveKeys
    timing: Timing
    data_address: str = "tcp://127.0.0.1:*"  # for other nodes
    #: The model's folder. An empty path means none, here and below.
    pack: str = ""
    trace: str = ""
    pages: str = ""  # the folder of KV pages
    keep_bytes: int = 0  # at most, of pages that survive
    park_bytes: int = 0  # at most, of waiting sequences' pages


def control_name(rank: int, epoch: int) -> str:
    """Returns a node's name on the control plane. Every epoch has other names."""
    return f"node-{rank}.{epoch}"


def node_of(peer: str) -> tuple[int | None, int]:
    """Returns (rank, epoch) for a `control_name`, (None, 0) for another peer."""
    if not peer.startswith("node-"):
        return None, 0
    rank, _, epoch = peer.removeprefix("node-").partition(".")
    return int(rank), int(epoch)


NOT_MEASURED = Capacity(0.0, 0.0)


@dataclass(frozen=True)
class NodeReport:
    """A fork server's measurement. `isa`: the instruction set of native kernels, or "torch" without native kernels."""

    isa: str
    capacity: Capacity


def to_line(said: NodeBootstrap | NodeReport | int) -> bytes:
    # msgspec would refuse paths that are not UTF-8, which Linux may have.
    return json.dumps(msgspec.to_builtins(said)).encode()


def from_line(line: bytes, kind: type[_Line]) -> _Line:
    """Parses a line of `to_line`. Raises ProtocolError."""
    try:
        return msgspec.convert(json.loads(line), kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"a line between a node and its parent is no {kind.__name__} ({type(error).__name__}): start nodes with "
            "'tpiedge run'"
        ) from None
