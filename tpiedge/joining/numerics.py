"""What two machines must have in common to compute the same numbers: torch's release, and how numbers lie in memory.

The processor may differ, and so may the kernels (in f32 and bf16 torch's): neither changes what a sum is made of.
"""

import struct
import sys
from dataclasses import dataclass
from importlib import metadata

_SAMPLE = 1.1
_FLOATS = "fd"
_ORDERS = {"little": "<", "big": ">"}


@dataclass(frozen=True, slots=True)
class Numerics:
    """`torch`: its release without what a build adds ("2.9.1", not "2.9.1+cpu"), "" where there is none.

    `numbers`: "little-endian IEEE 754" on every machine that is usual today.
    """

    torch: str
    numbers: str


def own_numerics() -> Numerics:
    """The numerics of this installation as it is on the disk now. Imports no torch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return Numerics(version.partition("+")[0], _number_format())


def _number_format() -> str:
    """Byte order, and whether a C float and double are those of IEEE 754; what they look like where they are not."""
    native = _floats("@")
    order = _ORDERS[sys.byteorder]
    return f"{sys.byteorder}-endian " + ("IEEE 754" if native == _floats(order) else native.hex())


def _floats(order: str) -> bytes:
    return b"".join(struct.pack(f"{order}{kind}", _SAMPLE) for kind in _FLOATS)
