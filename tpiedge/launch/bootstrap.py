"""The first line on a node process's standard input: secrets never appear in arguments."""

import json
from dataclasses import asdict, dataclass, field

from tpiedge.errors import ProtocolError
from tpiedge.launch.timing import Timing
from tpiedge.transport.keys import CurveKeys


@dataclass(frozen=True)
class NodeBootstrap:
    """The master's address and this node's identity. Keys are Z85 text.

    `name` is the node's on the control plane, where `rank` alone would not tell epochs apart. The node listens for
    others at `data_address`. `pack` is this machine's folder of the model; "" if the master's Assign names it. `trace`
    is the file that the node's trace is written to at its end, `locker` the folder where it finds and leaves keys and
    values for other epochs, encrypted with `locker_key` (hexadecimal digits); "" for none. They come from a parent on
    this computer only: no message of a master can name a file to write.
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
    locker: str = ""
    locker_key: str = field(default="", repr=False)

    @staticmethod
    def of(
        rank: int,
        epoch: int,
        control_address: str,
        master_key: str,
        keys: CurveKeys,
        threads: int,
        timing: Timing,
        data_address: str,
        *,
        pack: str = "",
        trace: str = "",
    ) -> "NodeBootstrap":
        """The bootstrap of the node `rank` in `epoch`."""
        return NodeBootstrap(
            rank=rank,
            control_address=control_address,
            master_key=master_key,
            public_key=keys.public,
            secret_key=keys.secret,
            threads=threads,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
            name=control_name(rank, epoch),
            data_address=data_address,
            pack=pack,
            trace=trace,
        )

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


def control_name(rank: int, epoch: int) -> str:
    """The name of a node on the control plane; it differs in every epoch."""
    return f"node-{rank}.{epoch}"


def node_of(peer: str) -> tuple[int | None, int]:
    """(rank, epoch) of a name that `control_name` made; (None, 0) for any other name."""
    if not peer.startswith("node-"):
        return None, 0
    rank, _, epoch = peer.removeprefix("node-").partition(".")
    return int(rank), int(epoch)
