"""What the switch is told: which devices it connects, over which links, along which paths. Pure; travels as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tpiedge.errors import UserError


@dataclass(frozen=True, slots=True)
class Port:
    """A device's only network interface, which the switch makes in the device's network namespace.

    `namespace` is the path of the namespace's file. `segmentation`: the interface may hand over bursts of up to 64 KiB
    as one frame (TSO); the switch allows it as long as no path of the device loses packets.
    """

    device: str
    namespace: str
    interface: str
    address: str
    prefix: int
    mac: str
    mtu: int = 1500
    segmentation: bool = True


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """One direction of a link. One-way `latency_s`, to which a uniform value in [0, `jitter_s`] is added without
    changing the order of packets; `loss`: the part of packets that vanish; None: no limit of the rate.

    What waits for a limited rate is at most `queue_bytes`; more is dropped.
    """

    name: str
    latency_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None
    queue_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """`paths[source][target]`: the indices into `links` of what a packet passes, in order."""

    ports: tuple[Port, ...]
    links: tuple[SwitchLink, ...]
    paths: Mapping[str, Mapping[str, tuple[int, ...]]]
    seed: int = 1

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "SwitchPlan":
        """Raises UserError where it is not what `to_json` wrote."""
        try:
            record = json.loads(text)
            return SwitchPlan(
                tuple(Port(**port) for port in record["ports"]),
                tuple(SwitchLink(**link) for link in record["links"]),
                {
                    source: {target: tuple(path) for target, path in targets.items()}
                    for source, targets in record["paths"].items()
                },
                record["seed"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"not a plan of a switch ({type(error).__name__}): 'tpiedge testbed up' makes one"
            ) from None
