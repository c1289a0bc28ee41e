"""How much a client may take."""

from dataclasses import dataclass

from tpiedge.units import KIB, MIB

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and seconds.

    `bodies_bytes`: of all requests that arrive at the same time; `preparing`: requests whose body arrives or is
    tokenized at the same time; `answer_s`: from a request's acceptance to the end of its answer; `write_s`: how long
    a client may not read.
    """

    body_bytes: int = 8 * MIB
    bodies_bytes: int = 64 * MIB
    preparing: int = 128
    headers_bytes: int = 16 * KIB
    headers_s: float = 10.0
    body_s: float = 60.0
    answer_s: float = 3600.0
    ping_s: float = 10.0
    write_s: float = 60.0
