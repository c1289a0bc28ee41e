"""What the HTTP API asks of the cluster behind it, and what it is told.

The API owns no model and no nodes: it holds a `Service`. All methods may be called from any thread and return at
once, save `Generation.events`, which blocks in a thread of its own. `answers/generation.py` has what answers ask of it.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from tpiedge.answers.generation import Queue
from tpiedge.master.counters import StepTimeline
from tpiedge.master.foresight import Forecast
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import RequestLine
from tpiedge.master.status import ClusterStatus
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.requests import Sampling


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model. `created` in seconds since 1970, `context_tokens` for prompt and answer together.

    Requests may name the model by any of `also_called`, too, and by its `path` on the master's computer, if it has one,
    of which clients are not told. `width`: numbers of an embedding; `pooling`: how its makers have it made of states.
    `family`, `precision`, `nbytes` and `digest` (64 hexadecimal digits): of its weights.
    """

    name: str
    context_tokens: int
    created: int
    also_called: tuple[str, ...] = ()
    width: int = 0
    family: str = "llama"
    precision: str = "f32"
    nbytes: int = 0
    digest: str = "0" * 64
    path: str | None = None
    pooling: str = "mean"

    @property
    def names(self) -> tuple[str, ...]:
        """All that clients are told."""
        return (self.name, *self.also_called)

    def is_called(self, name: str) -> bool:
        """Whether a request that says so means this model."""
        return name in (self.path, *self.names)


@dataclass(frozen=True, slots=True)
class PendingJoin:
    """A worker without a token that waits to be let in. Only its own screen shows the code."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class EnrolledWorker:
    """A worker that may come without a token, whether it is here or not. `host` is its computer's name."""

    name: str
    host: str


class Service(Queue, Protocol):
    """The cluster, as the API sees it."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def template(self) -> ChatTemplate | None: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def usual_sampling(self) -> Sampling:
        """For what a request does not say of how tokens are drawn."""

    @property
    def max_sequence(self) -> int:
        """Tokens of prompt and answer together that a request may have."""

    def model(self) -> ModelInfo: ...

    def status(self) -> ClusterStatus: ...

    def observe(self, *, timeline: bool = False) -> ClusterStatus:
        """Gives `status` and asks the nodes for their counters, which a later call has; for what they do in a step,
        too, if `timeline` is to have one."""

    def timeline(self) -> StepTimeline | None:
        """What all nodes did in one of the last steps; None where nothing is known of one."""

    def request_lines(self) -> tuple[RequestLine, ...]:
        """How each accepted request gets on: those that run, then those that wait."""

    def events(self) -> tuple[ClusterEvent, ...]:
        """What happened last in the cluster, the latest first."""

    def dismiss(self, request: str) -> bool:
        """End the request of that id, whose reader is told so. Returns whether there is one."""

    def pending(self) -> tuple[PendingJoin, ...]:
        """Workers that wait to be let in."""

    def members(self) -> tuple[EnrolledWorker, ...]:
        """All workers of the cluster, in the order in which they were let in."""

    def shut_out(self) -> tuple[EnrolledWorker, ...]:
        """Those that were revoked, in the order in which that was done."""

    def approve(self, code: str) -> str:
        """Let a waiting worker in; returns its name. Raises UserError for an unknown code."""

    def revoke(self, name: str) -> str:
        """Shut the node out for good that has this name or, alone, this host; returns its name. Raises UserError,
        UnknownWorker where there is none."""

    def what_if(self, without: str) -> Forecast:
        """What the planner predicts without the worker that has this name or, alone, this host; with one more like the
        last, if the name is empty. Takes as long as two plans: for a thread. Raises as
        `revoke`, UserError where there is no worker to be like, Unavailable."""

    def drain(self, name: str) -> Future[str]:
        """Have the worker that has this name or, alone, this host taken out of plans; `status` says when it has no
        part. The result is its name, or CannotDrain, with nothing changed. Raises as `revoke`."""

    def undrain(self, name: str) -> str:
        """Let plans have that worker again, if they may not; returns its name. Raises as `revoke`."""

    def clear(self, name: str) -> str:
        """End the time for which that worker is left out, if it is; returns its name. Raises as `revoke`."""
