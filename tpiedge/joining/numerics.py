"""What two machines must have in common to compute the same numbers: torch's release, and how numbers lie in memory.

The processor may differ, and so may the kernels (in f32 and bf16 torch's): neither changes what a sum is made of.
"""

import sys
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, slots=True)
class Numerics:
    """`torch`: its release without what a build adds ("2.9.1", not "2.9.1+cpu"), "" where there is none.

    `numbers`: "little-endian IEEE 754" on every machine that is usual today. Python itself needs floats of IEEE 754.
    """

    torch: str
    numbers: str


def own_numerics() -> Numerics:
    """The numerics of this installation as it is on the disk now. Imports no torch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return Numerics(version.partition("+")[0], f"{sys.byteorder}-endian IEEE 754")
