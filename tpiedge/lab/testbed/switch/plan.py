"""What the switch is told: which devices it connects, over which links, along which paths. Pure; travels as JSON.

The native side relies on what is checked here: numbers within their limits, and paths of links that are there.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from tpiedge.errors import UserError

#: Of each setting of a link the least and the largest value.
_LIMITS: Final = {
    "latency_s": (0.0, 60.0),
    "jitter_s": (0.0, 60.0),
    "loss": (0.0, 1.0),
    "bytes_per_s": (1.0, 1e12),
    "queue_bytes": (0, 1 << 40),
}


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


def check_plan(plan: SwitchPlan) -> None:
    """Raises UserError with the first thing that is wrong."""
    for link in plan.links:
        _check_link(link)
    for source, targets in plan.paths.items():
        for target, path in targets.items():
            if not set(path) <= set(range(len(plan.links))):
                raise UserError(f"the path from {source!r} to {target!r} names a link that is not there")


def changed_links(links: Mapping[str, SwitchLink], wanted: object) -> list[SwitchLink]:
    """The links named in `wanted` with their new settings. Raises UserError where there is anything wrong."""
    if not isinstance(wanted, dict):
        raise UserError("'links' must be an object: the settings that change, by the name of the link")
    changed = []
    for name, settings in wanted.items():
        if name not in links:
            raise UserError(f"there is no link {name!r}; there are: {', '.join(links)}")
        if not isinstance(settings, dict) or not settings.keys() <= _LIMITS.keys():
            raise UserError(f"link {name!r}: the settings must be some of {', '.join(_LIMITS)}")
        changed.append(replace(links[name], **settings))
        _check_link(changed[-1])
    return changed


def _check_link(link: SwitchLink) -> None:
    for setting, (least, most) in _LIMITS.items():
        value = getattr(link, setting)
        if setting == "bytes_per_s" and value is None:
            continue
        if not isinstance(value, int | float) or not least <= value <= most:
            raise UserError(
                f"link {link.name!r}: {setting} must be a number from {least:g} to {most:g}, not {value!r}"
            )
