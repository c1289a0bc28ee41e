"""How much a client may take."""

from dataclasses import dataclass, replace
from typing import Self

from tpiedge.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and seconds.

    `connections`: that are open at a time, of one address at most half of them;
    `body_bytes`, `body_values`: of one request, as JSON; `bodies_bytes`: of all requests that arrive at the same time;
    `preparing`: requests whose body arrives or is tokenized at the same time; of these and of those bytes no client has
    more than half, nor more than the others leave; `linger_s`: how long a refused body is read and thrown away, so that
    its sender reads the refusal; `answer_s`: from a request's acceptance to the end of its answer, its time in the
    queue included, None where the cluster's progress alone bounds it; `quiet_s`: until a client that waits for a whole
    answer hears that we live, `ping_s`: the same in a stream, and from one such sign to the next; `write_s`: how long a
    client may not read an answer, up to twice as long.
    """

    connections: int = 4096
    body_bytes: int = 4 * MIB
    body_values: int = 200_000
    bodies_bytes: int = 16 * MIB
    preparing: int = 256
    headers_bytes: int = 16 * KIB
    headers_s: float = 10.0
    body_s: float = 60.0
    linger_s: float = 2.0
    answer_s: float | None = None
    quiet_s: float = 30.0
    ping_s: float = 10.0
    write_s: float = 60.0

    @classmethod
    def of_context(cls, tokens: int) -> Self:
        """The limits for prompts of up to `tokens`: a body that is larger cannot be answered, whatever it says."""
        body_bytes = min(4 * MIB, 512 * KIB + 64 * tokens)
        # Beside the prompt: 4096 messages of one part, each with a role, a name and commas.
        return cls(body_bytes=body_bytes, body_values=65_536 + tokens, bodies_bytes=4 * body_bytes)

    def of_descriptors(self, descriptors: int) -> Self:
        """The limits for a process that may open so many files and connections: half of them are for workers."""
        return replace(self, connections=min(self.connections, descriptors // 2))
