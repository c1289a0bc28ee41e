"""A running master, for the HTTP API."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from tpiedge.errors import UserError
from tpiedge.joining.pairing_link import PairingHub
from tpiedge.joining.registrar import Registrar
from tpiedge.local.prepare import PreparedModel
from tpiedge.master import loss_plans
from tpiedge.master.counters import StepTimeline
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import PendingAnswer, RequestLine
from tpiedge.master.loss_plans import Forecast, PlaceNodes
from tpiedge.master.master import Master
from tpiedge.master.reconciler import NotServing
from tpiedge.master.status import ClusterStatus
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.manifest import manifest_bytes, pack_id
from tpiedge.supervision import Supervisor
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.requests import GenerationRequest


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model and its weights. `created`: seconds since 1970; `context_tokens`: tokens of prompt and answer
    together; `width`: numbers of an embedding; `digest`: 64 hexadecimal digits; `path`: where the model is on the
    master's computer. Requests may name the model by `path`, but no client is told it. `ffn_part`: the FFN's part of a
    layer's weights, 0 to 1."""

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
    ffn_part: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also_called)

    def is_called(self, name: str) -> bool:
        return name in (self.path, *self.names)


class Service:
    """A master with its model, for any thread. Only `what_if` blocks. `usual_sampling`: requests' default.
    `max_sequence`: context in tokens."""

    def __init__(
        self,
        master: Master,
        registrar: Registrar,
        pairing: PairingHub,
        model: PreparedModel,
        aliases: Sequence[str],
        max_sequence: int,
        supervisor: Supervisor,
        placement: PlaceNodes,
        invite: Callable[[], list[str]] = list,
    ) -> None:
        #: Makes a token for one worker. Returns lines for a shell that install and start the worker. Raises UserError.
        self.invite = invite
        self._placement = placement
        self._master = master
        self._supervisor = supervisor
        self._registrar = registrar
        self._pairing = pairing
        others = dict.fromkeys(name for name in (*model.also_called, *aliases) if name != model.public_name)
        self._info = ModelInfo(
            model.public_name,
            max_sequence,
            int(time.time()),
            tuple(others),
            width=model.config.hidden_size,
            family=model.config.model_type,
            precision=model.pack.precision.value,
            nbytes=model.pack.nbytes,
            digest=pack_id(manifest_bytes(model.pack.path)),
            path=model.path,
            pooling=model.usual_pooling,
            ffn_part=model.config.ffn_part,
        )
        self.max_sequence = max_sequence
        self.eos_ids = model.end_ids
        self.vocab_size = model.config.vocab_size
        self.usual_sampling = model.usual_sampling
        self.tokenizer: Tokenizer | None = model.tokenizer if model.has_tokenizer else None
        self.template: ChatTemplate | None = model.template if model.has_template else None

    def model(self) -> ModelInfo:
        return self._info

    def status(self) -> ClusterStatus:
        return self._seen(self._master.status)

    def observe(self, *, timeline: bool = False) -> ClusterStatus:
        return self._seen(self._master.observe(timeline=timeline))

    def timeline(self) -> StepTimeline | None:
        return self._master.timeline

    def request_lines(self) -> tuple[RequestLine, ...]:
        """Returns the progress of all accepted requests, the running ones first."""
        return self._master.requests.lines

    def events(self) -> tuple[ClusterEvent, ...]:
        """Returns the last events, the latest first."""
        return self._master.events

    def dismiss(self, request: str) -> bool:
        """Ends a request and tells its reader. Returns whether the request exists."""
        return self._master.requests.dismiss(request)

    def submit(self, request: GenerationRequest, client: str, *, has_reader: bool = True) -> PendingAnswer:
        """Queues the request. Raises QueueFull, NotServing."""
        if self._supervisor.failed:
            raise NotServing(f"the master ends: its thread {self._supervisor.failed} failed")
        return self._master.submit(request, client, has_reader=has_reader)

    def postpone(self, count: int, client: str) -> None:
        self._master.requests.postpone(count, client)

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> PendingAnswer:
        return self._master.resume(request, said)

    def pending(self) -> list[dict[str, str]]:
        """Returns names and addresses of workers that wait for admission."""
        return [{"name": one.host, "address": one.address} for one in self._pairing.pending()]

    def members(self) -> dict[str, list[dict[str, str]]]:
        table = self._registrar.journal.table
        known = (("members", table.members), ("revoked", table.revoked))
        return {kind: [{"name": one.name, "host": one.host} for one in some] for kind, some in known}

    def approve(self, code: str) -> str:
        """Lets a waiting worker in; returns its name. Raises UserError."""
        return self._pairing.approve(code).name

    def revoke(self, name: str) -> str:
        """Revokes a worker by name or host; returns its name. Raises UserError, UnknownWorker."""
        peer = self._called(name)
        self._registrar.revoke(peer, self._master.remove_worker)
        return peer

    def what_if(self, without: str) -> Forecast:
        """Predicts the speed without one worker; if `without` is "", with one more worker. Blocks. Raises like
        `revoke`, and NotServing."""
        name = self._called(without) if without else ""
        try:
            # The control thread answers within a turn, unless it starts or ends rank 0's processes.
            machines = self._master.usable().result(5.0)
        except TimeoutError:
            raise NotServing("the master is busy: try again later") from None
        if not machines:
            raise UserError("there is no worker yet that another one could be like")
        return loss_plans.what_if(self._placement, machines, name)

    def drain(self, name: str) -> Future[str]:
        """Takes the worker out of plans. The future gets the worker's name, or CannotDrain. Raises like `revoke`."""
        return self._master.drain_worker(self._called(name))

    def undrain(self, name: str) -> str:
        """Lets plans have the worker again; returns its name. Raises like `revoke`."""
        found = self._called(name)
        self._master.undrain_worker(found)
        return found

    def clear(self, name: str) -> str:
        """Ends the worker's wait; returns its name. Raises like `revoke`."""
        found = self._called(name)
        self._master.clear_worker(found)
        return found

    def _called(self, name: str) -> str:
        here = (node for node in self._master.status.nodes if node.host and node.state != "lost")
        return self._registrar.journal.table.called(name, {node.name: node.host for node in here})

    def _seen(self, status: ClusterStatus) -> ClusterStatus:
        why, failed = self._supervisor.failure, self._supervisor.failed
        return status if why is None else replace(status, ready=False, reason=str(why), failed=failed)
