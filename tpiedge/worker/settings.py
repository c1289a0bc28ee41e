"""What an agent knows of its machine and its master from its start on."""

from dataclasses import dataclass, field
from pathlib import Path

from tpiedge.launch.timing import Timing
from tpiedge.wire.weights import Keeping


@dataclass(frozen=True)
class AgentSettings:
    """The master's address and key, this worker's names, and what it offers. Sizes in bytes."""

    control_address: str
    master_key: str
    name: str
    host: str
    threads: int
    free_disk_bytes: int
    disk_bytes_per_s: float
    keeping: Keeping = field(default_factory=Keeping)
    #: As for NodeSlot.
    locker: Path | None = None
    timing: Timing = field(default_factory=Timing)
