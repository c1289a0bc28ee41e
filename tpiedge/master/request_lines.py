"""How a request gets on, for who looks after the cluster: a pure function of what the queue knows of it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpiedge.master.journal import Journal
from tpiedge.master.reading_progress import Reading
from tpiedge.master.request_times import Timeline

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


def request_line(
    journal: Journal,
    times: Timeline,
    why: str,
    now: float,
    *,
    running: bool,
    attended: bool,
    reading: Reading | None,
    client: str,
) -> RequestLine:
    """`now` is on the clock of `times`; `why`: what was told last of a pause; `running`: whether rank 0 has it;
    `reading`: as it said last."""
    tokens = len(journal.answer_ids)
    spent_s = now - times.first if times.first is not None else 0.0
    return RequestLine(
        journal.request.id,
        _state(journal, running),
        None if times.accepted is None else now - times.accepted,
        len(journal.request.prompt_ids),
        tokens,
        journal.request.max_tokens,
        (tokens - 1) / spent_s if tokens > 1 and spent_s > 0 else 0.0,
        why if journal.paused is not None else "",
        now - journal.paused if journal.paused is not None else 0.0,
        attended,
        reading if running and journal.reading else None,
        client,
    )


def _state(journal: Journal, running: bool) -> RequestState:
    if journal.paused is not None:
        return "paused"
    if not running:
        return "queued"
    return "reading" if journal.reading else "answering"
