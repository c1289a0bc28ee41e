"""The cluster behind the HTTP API, which owns no model and no nodes: it holds a `Service`."""

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
    """The served model and its weights. `created` in seconds since 1970; `context_tokens` of prompt and answer
    together; `also_called`: further names; `width`: numbers of an embedding; `digest`: 64 hexadecimal digits; `path` on
    the master's computer, by which requests may name the model, though no client is told it."""

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
        return (self.name, *self.also_called)

    def is_called(self, name: str) -> bool:
        return name in (self.path, *self.names)


class Service(Queue, Protocol):
    """The cluster, for any thread. All methods return at once but `what_if`."""

    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]
    vocab_size: int
    usual_sampling: Sampling
    """Gives what a request does not say."""
    max_sequence: int
    """Tokens of prompt and answer together."""

    def model(self) -> ModelInfo: ...

    def status(self) -> ClusterStatus: ...

    def observe(self, *, timeline: bool = False) -> ClusterStatus:
        """Returns `status`, and asks the nodes for the counters that a later call has; with `timeline` also for what
        they do in a step."""

    def timeline(self) -> StepTimeline | None: ...

    def request_lines(self) -> tuple[RequestLine, ...]:
        """Progress of each accepted request: those that run, then those that wait."""

    def events(self) -> tuple[ClusterEvent, ...]:
        """The last events of the cluster, the latest first."""

    def dismiss(self, request: str) -> bool:
        """Ends the request of that id, whose reader is told so. Returns whether there is one."""

    def pending(self) -> list[dict[str, str]]:
        """Name and address of each worker that waits to be let in."""

    def members(self) -> list[dict[str, str]]:
        """Name and host of each worker, by its admission."""

    def shut_out(self) -> list[dict[str, str]]:
        """Name and host of each revoked worker, by its revocation."""

    def approve(self, code: str) -> str:
        """Lets a waiting worker in; returns its name. Raises UserError for an unknown code."""

    def revoke(self, name: str) -> str:
        """Revokes the node that has this name or, alone, this host; returns its name. Raises UserError, and
        UnknownWorker without such a node."""

    def what_if(self, without: str) -> Forecast:
        """Predicts the speed without that worker, or with one more like the last if the name is empty. Blocks for two
        plans. Raises as `revoke`, UserError where there is no worker to be like, NotServing."""

    def drain(self, name: str) -> Future[str]:
        """Takes that worker out of plans; `status` says when it has no part. The result is its name, or CannotDrain,
        with nothing changed. Raises as `revoke`."""

    def undrain(self, name: str) -> str:
        """Lets plans have that worker again; returns its name. Raises as `revoke`."""

    def clear(self, name: str) -> str:
        """Ends the time for which that worker is left out; returns its name. Raises as `revoke`."""
