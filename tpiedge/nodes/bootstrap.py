"""What a node process is told on the first line of its standard input: secrets never stand in arguments."""

import json
from dataclasses import asdict, dataclass, field

from tpiedge.errors import ProtocolError

__all__ = ["NodeBootstrap"]


@dataclass(frozen=True)
class NodeBootstrap:
    """Where the master is and who this node is. Keys are Z85 text.

    `name` is the node's on the control plane, where `rank` alone would not tell epochs apart. It listens for others at
    `data_address`. `pack` is where this machine keeps the model; "" where the master knows. `trace` is the
    file to write at the end, with what the node did when; "" for none. It comes from a parent on this computer only:
    no message of a master can make a node write a file.
    """

    rank: int
    control_address: str
    master_key: str
    public_key: str
    secret_key: str = field(repr=False)
    threads: int
    heartbeat_s: float
    timeout_s: float
    stall_s: float
    name: str = ""
    data_address: str = "tcp://127.0.0.1:*"
    pack: str = ""
    trace: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_line(line: bytes) -> "NodeBootstrap":
        """Raises ProtocolError if the line is not what `to_line` wrote."""
        try:
            return NodeBootstrap(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ProtocolError(
                f"the first line on standard input is not a node's bootstrap ({type(error).__name__}): "
                "start nodes with 'tpiedge run'"
            ) from None
