"""The master as the HTTP API sees it."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from tpiedge.api.service import ModelInfo
from tpiedge.errors import UserError
from tpiedge.joining.front_door import FrontDoor
from tpiedge.joining.pairing_link import PairingHub
from tpiedge.local.prepare import PreparedModel
from tpiedge.master import foresight
from tpiedge.master.counters import StepTimeline
from tpiedge.master.foresight import Forecast, PlaceNodes
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import PendingAnswer, RequestLine
from tpiedge.master.master import Master
from tpiedge.master.reconciler import NotServing
from tpiedge.master.status import ClusterStatus
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.manifest import manifest_bytes, pack_id
from tpiedge.supervision import Supervisor
from tpiedge.wire.control import AnswerPart
from tpiedge.wire.requests import GenerationRequest


class MasterService:
    def __init__(
        self,
        master: Master,
        door: FrontDoor,
        pairing: PairingHub,
        model: PreparedModel,
        aliases: Sequence[str],
        max_sequence: int,
        supervisor: Supervisor,
        placement: PlaceNodes,
    ) -> None:
        self._placement = placement
        self._master = master
        self._supervisor = supervisor
        self._door = door
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
        return self._master.requests.lines

    def events(self) -> tuple[ClusterEvent, ...]:
        return self._master.events

    def dismiss(self, request: str) -> bool:
        return self._master.requests.dismiss(request)

    def submit(self, request: GenerationRequest, client: str, *, attended: bool = True) -> PendingAnswer:
        if self._supervisor.failed:
            raise NotServing(f"the master ends: its thread {self._supervisor.failed} failed")
        return self._master.submit(request, client, attended=attended)

    def postpone(self, count: int, client: str) -> None:
        self._master.requests.postpone(count, client)

    def resume(self, request: GenerationRequest, said: Sequence[AnswerPart]) -> PendingAnswer:
        return self._master.resume(request, said)

    def pending(self) -> list[dict[str, str]]:
        return [{"name": one.host, "address": one.address} for one in self._pairing.pending()]

    def members(self) -> list[dict[str, str]]:
        return [{"name": one.name, "host": one.host} for one in self._door.journal.table.members]

    def shut_out(self) -> list[dict[str, str]]:
        return [{"name": one.name, "host": one.host} for one in self._door.journal.table.revoked]

    def approve(self, code: str) -> str:
        return self._pairing.approve(code).name

    def revoke(self, name: str) -> str:
        peer = self._called(name)
        self._door.revoke(peer, self._master.forget)
        return peer

    def what_if(self, without: str) -> Forecast:
        name = self._called(without) if without else ""
        try:
            # The control thread answers within a turn, unless it starts or ends rank 0's processes.
            machines = self._master.usable().result(5.0)
        except TimeoutError:
            raise NotServing("the master is busy: try again later") from None
        if not machines:
            raise UserError("there is no worker yet that another one could be like")
        return foresight.what_if(self._placement, machines, name)

    def drain(self, name: str) -> Future[str]:
        return self._master.drain_worker(self._called(name))

    def undrain(self, name: str) -> str:
        found = self._called(name)
        self._master.undrain_worker(found)
        return found

    def clear(self, name: str) -> str:
        found = self._called(name)
        self._master.clear_worker(found)
        return found

    def _called(self, name: str) -> str:
        here = (node for node in self._master.status.nodes if node.host and node.state != "lost")
        return self._door.journal.table.called(name, {node.name: node.host for node in here})

    def _seen(self, status: ClusterStatus) -> ClusterStatus:
        if self._supervisor.failure is None:
            return status
        return replace(
            status, ready=False, reason=str(self._supervisor.failure), failed=self._supervisor.failed
        )
