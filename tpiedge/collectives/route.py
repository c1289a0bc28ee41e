"""By which collective the all-reduces of a step go, and how their parts travel."""

from dataclasses import dataclass

from tpiedge.wire.fields import CollectiveName, WirePrecision


@dataclass(frozen=True, slots=True)
class Route:
    """All-reduces of at most `small_bytes` (as f32) go by `small`, larger ones by `bulk`; parts travel as `wire`."""

    small: CollectiveName = "star"
    bulk: CollectiveName = "star"
    small_bytes: int = 0
    wire: WirePrecision = "f32"
