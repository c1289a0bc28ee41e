"""The order to a standby node and its report: one line of JSON each way."""

import json
from dataclasses import asdict, dataclass

from tpiedge.errors import ProtocolError
from tpiedge.wire.epochs import Capacity

NOT_MEASURED = Capacity(0, 0.0, 0.0)

_STANDBY = "standby"


@dataclass(frozen=True)
class StandbyOrder:
    """First line to a node: get ready with `threads` threads, `measure` if true, report, wait for the bootstrap."""

    measure: bool
    threads: int

    def to_line(self) -> bytes:
        return json.dumps({_STANDBY: True, **asdict(self)}).encode()

    @staticmethod
    def from_line(line: bytes) -> "StandbyOrder | None":
        """None for any other line: it is the bootstrap. Raises ProtocolError for an order of another version."""
        try:
            fields = json.loads(line)
        except ValueError:
            return None
        if not isinstance(fields, dict) or fields.pop(_STANDBY, False) is not True:
            return None
        try:
            return StandbyOrder(**fields)
        except TypeError as error:
            raise ProtocolError(f"not an order for a standby node: {error}") from None


@dataclass(frozen=True)
class NodeReport:
    """A standby node is ready: torch is imported. `isa` is the native kernels' or, without them, "torch"."""

    pid: int
    cpu: str
    isa: str
    capacity: Capacity

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_line(line: bytes) -> "NodeReport":
        """Raises ProtocolError if the line is not what `to_line` wrote."""
        try:
            fields = json.loads(line)
            return NodeReport(**(fields | {"capacity": Capacity(**fields["capacity"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise ProtocolError(f"not the report of a standby node ({type(error).__name__})") from None
