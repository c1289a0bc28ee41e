"""How a request gets on, for who looks after the cluster."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpiedge.master.reading_progress import Reading

RequestState: TypeAlias = Literal["queued", "reading", "answering", "paused"]
"""It has not begun, its prompt is computed, its answer comes, or it pauses."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One accepted request, `age_s` ago (None: by an earlier master). `tokens` of at most `max_tokens` are there,
    `tokens_per_s` since the first one, with its pauses; 0: not known. `why` it pauses, for `paused_s` so far;
    `attended`: whether somebody waits for it; `reading`: how far its prompt is read, while that is told; `client`:
    whose it is, as its submitter called them, empty where nobody knows that."""

    id: str
    state: RequestState
    age_s: float | None
    prompt_tokens: int
    tokens: int
    max_tokens: int
    tokens_per_s: float
    why: str
    paused_s: float
    attended: bool
    reading: Reading | None = None
    client: str = ""
