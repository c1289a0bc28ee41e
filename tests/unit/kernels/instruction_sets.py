"""The instruction sets that this CPU and build of the kernels have; tests are not even collected for the others."""

from pathlib import Path

import tpiedge.kernels
from tpiedge.kernels.shared_library import ISAS, find_library, load


def _available() -> tuple[str, ...]:
    path = find_library(Path(tpiedge.kernels.__path__[0]))
    if path is None:
        return ()
    try:
        dll = load(path)
    except OSError:
        return ()
    return tuple(isa for number, isa in enumerate(ISAS) if dll.tpiedge_has_isa(number))


#: In the order of ISAS, none where the kernels are not built.
AVAILABLE = _available()
LACKING = tuple(isa for isa in ISAS if isa not in AVAILABLE)
