"""A running master as the HTTP API sees it: submits requests, lists models, manages machines."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Final

from tpiedge.errors import UserError
from tpiedge.joining.pairing_link import PairingHub
from tpiedge.joining.registrar import Registrar
from tpiedge.kv.page_folder import PageFolder, PageUsage
from tpiedge.local.served_models import ServedModel, ServedModels
from tpiedge.master import loss_plans
from tpiedge.master.counters import StepTimeline
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import PendingAnswer, RequestLine
from tpiedge.master.loss_plans import Forecast
from tpiedge.master.master import Master
from tpiedge.master.reconciler import NotServing
from tpiedge.master.status import ClusterStatus
from tpiedge.sanitise import sanitised_line
from tpiedge.supervision import Supervisor
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.requests import GenerationRequest

_TURN_S: Final = 5.0  # the control thread answers within a turn, unless it starts or ends rank 0's processes
_BUSY: Final = "the master is busy: try again later"
_PAGES_S: Final = 20.0  # to delete thousands of files takes seconds


@dataclass(frozen=True, slots=True)
class MachinePages:
    """A machine's page files, and their limits in bytes. `why`: why the machine did not answer, or ""."""

    name: str
    host: str
    kept: PageUsage
    parked: PageUsage
    keep_bytes: int
    park_bytes: int
    why: str = ""


class Service:
    """A master with its models, for any thread. `model`, `packed`, `use` and `what_if` may block."""

    def __init__(
        self,
        master: Master,
        registrar: Registrar,
        pairing: PairingHub,
        models: ServedModels,
        supervisor: Supervisor,
        pages: PageFolder,
        invite: Callable[[], dict[str, object]] = dict,
    ) -> None:
        #: Makes a token for one worker. Returns `lines` for a shell that install and start the worker, and the `ports`
        #: of the master that it connects to. Raises UserError.
        self.invite = invite
        self._master = master
        self._supervisor = supervisor
        self._registrar = registrar
        self._pairing = pairing
        self._models = models
        self._pages = pages

    def model(self, name: str = "") -> ServedModel:
        """Finds and opens a model; without a name, the one that is served. Raises like ServedModels.find."""
        return self._models.find(name) if name else self._models.packed(self._master.status.pack)

    def packed(self, pack: str) -> ServedModel:
        """Finds a model by the id of its pack."""
        return self._models.packed(pack)

    def described(self, name: str) -> ServedModel:
        """Finds a model without opening it. Raises UnknownModel."""
        return self._models.described(name)

    def offered(self) -> list[ServedModel]:
        """Returns the models that requests may name, the served one first."""
        pack = self._master.status.pack
        return sorted(self._models.offered, key=lambda one: one.digest != pack)

    def use(self, name: str, *, now: bool) -> ServedModel:
        """Opens the model. The cluster serves it once no request runs or waits. `now`: dismisses the requests of
        other models. Raises like `model`."""
        model = self.model(name)
        self._chosen(model.digest)
        if now:
            self._master.requests.dismiss_others(model.digest)
        return model

    def load(self, pack: str, keep_s: float | None) -> None:
        """Loads the model as soon as no request runs or waits. `keep_s`: see `keep_weights`; 0 unloads all weights."""
        if keep_s is not None:
            self.keep_weights(keep_s)
        if keep_s != 0:
            self._chosen(pack)

    def _chosen(self, pack: str) -> None:
        try:
            self._master.choose_model(pack).result(_TURN_S)
        except TimeoutError:
            raise NotServing(_BUSY) from None

    def keep_weights(self, seconds: float) -> None:
        """Sets how long weights stay in memory without requests."""
        self._master.keep_weights(seconds)

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
            machines = self._master.usable().result(_TURN_S)
        except TimeoutError:
            raise NotServing(_BUSY) from None
        if not machines:
            raise UserError("there is no worker yet that another one could be like")
        return loss_plans.what_if(self._master.wanted.plan, machines, name)

    def page_files(self, *, clear: bool = False) -> list[MachinePages]:
        """Counts the page files of all machines. If `clear`, deletes them and counts what was deleted. Blocks. Raises
        UserError, DiskFull, NotServing."""
        try:
            asked = self._master.ask_pages(clear=clear).result(_TURN_S)
        except TimeoutError:
            raise NotServing(_BUSY) from None
        own = self._pages.usage(clear=clear)
        wait(asked.values(), _PAGES_S)
        found = []
        for node in self._master.status.nodes:
            (kept, parked), why, answer = own, "", asked.get(node.name)
            if node.host:
                kept = parked = PageUsage()
                if answer is None:
                    why = "it is away"
                elif not answer.done():
                    why = f"it did not answer within {_PAGES_S:.0f} s"
                else:
                    said = answer.result()
                    kept, why = PageUsage(said.kept_pages, said.kept_bytes), said.why
                    parked = PageUsage(said.parked_pages, said.parked_bytes)
            limits = node.keep_bytes, node.park_bytes
            found.append(MachinePages(node.name, node.host, kept, parked, *limits, sanitised_line(why)))
        return found

    def drain(self, name: str) -> Future[str]:
        """Takes the worker out of plans. The future gets the worker's name, or CannotDrain. Raises like `revoke`."""
        return self._master.drain_worker(self._called(name))

    def undrain(self, name: str) -> str:
        """Lets plans have the worker again; returns its name. Raises like `revoke`."""
        found = self._called(name)
        self._master.undrain_worker(found)
        return found

    def clear(self, name: str) -> str:
        """Ends the worker's wait after a failure; returns its name. Raises like `revoke`."""
        found = self._called(name)
        self._master.clear_worker(found)
        return found

    def _called(self, name: str) -> str:
        here = (node for node in self._master.status.nodes if node.host and node.state != "lost")
        return self._registrar.journal.table.called(name, {node.name: node.host for node in here})

    def _seen(self, status: ClusterStatus) -> ClusterStatus:
        why, failed = self._supervisor.failure, self._supervisor.failed
        return status if why is None else replace(status, ready=False, reason=str(why), failed=failed)
