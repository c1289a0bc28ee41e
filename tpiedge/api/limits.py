"""Limits for clients: sizes of bodies, connections, waits and deadlines."""

from dataclasses import dataclass
from typing import Final, Self

from tpiedge.units import KIB, MIB

HEADERS_BYTES: Final = 16 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in bytes and seconds. `preparing` limits the requests that arrive at once. One client gets at most half of
    `connections`, `bodies_bytes` and `preparing`.

    A refused body is read for `linger_s`. A response may take `answer_s`; None means no limit. Signs of life come every
    `ping_s`. In an unstreamed answer, the first sign comes after at most `quiet_s`. A client that does not read is
    disconnected after one to two times `write_s`."""

    connections: int = 4096
    body_bytes: int = 4 * MIB
    body_values: int = 200_000
    bodies_bytes: int = 16 * MIB
    preparing: int = 256
    headers_s: float = 10.0
    body_s: float = 60.0
    linger_s: float = 2.0
    answer_s: float | None = None
    quiet_s: float = 30.0
    ping_s: float = 10.0
    write_s: float = 60.0

    @classmethod
    def of_context(cls, tokens: int, descriptors: int = 8192, answer_s: float | None = None) -> Self:
        """Returns limits for prompts of `tokens`. Workers get half of the file `descriptors`."""
        size = min(4 * MIB, 512 * KIB + 64 * tokens)
        # 65,536 values are 4096 messages of one part, each with a role, a name and commas.
        values, connections = 65_536 + tokens, min(4096, descriptors // 2)
        return cls(connections, size, values, bodies_bytes=4 * size, answer_s=answer_s)
