"""Workers and nodes that do what real ones do, by a formula in place of a model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import structs

from tests.simulation import formula
from tests.unit.master.players import FakeAgent, FakeNode, offer
from tpiedge.planner.network import listens
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire import control, epochs
from tpiedge.wire.fields import Message
from tpiedge.wire.requests import GenerationRequest

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class SimulatedAgent(FakeAgent):
    def __init__(self, cluster: "Cluster", name: str) -> None:
        super().__init__(cluster, name)
        self.cluster = cluster
        self.nonce = 1
        self.memory_bytes = 1 << 30
        #: Heartbeats that fetching takes, and those that are left; None: nothing is fetched.
        self.fetch_beats = 0
        self.fetching: int | None = None
        self.fetched = 0
        self.trouble = ""  # why nothing can be prepared; "" if it can
        self.lacks = ""  # the pack that it cannot prepare
        self.launched = ""  # the pack of its latest node
        self.gone = False
        self._node: SimulatedNode | None = None

    def introduce(self) -> None:
        self.say(structs.replace(offer(self.nonce), memory_bytes=self.memory_bytes))

    def say(self, message: Message) -> None:
        if not self.gone:
            super().say(message)

    def pulse(self) -> None:
        super().pulse()
        if self.frozen or self.fetching is None or self.order is None:
            return
        if self.fetching > 0:
            self.fetching -= 1
            self.fetched += 1
            self.say(epochs.Preparing(self.order.epoch, self.fetched, self.fetched + self.fetching, 3.0))
            return
        self.fetching = None
        self.key = CurveKeys.generate().public
        self.say(epochs.Prepared(self.order.epoch, self.key))

    def answer(self, message: Message) -> None:
        match message:
            case epochs.AskOffer():
                self.introduce()
            case epochs.Prepare(epoch=epoch) if self.trouble:
                self.say(epochs.NodeEnded(epoch, self.trouble))
            case epochs.Prepare(epoch=epoch, pack=pack) if pack == self.lacks:
                self.say(epochs.NodeEnded(epoch, "it lacks the file"))
            case epochs.Prepare():
                self.cluster.was_asked(self.name, message.epoch)
                self.order, self.fetching, self.fetched = message, self.fetch_beats, 0
            case epochs.Launch(epoch=epoch):
                self._launch(epoch)
            case epochs.Release(epoch=epoch):
                self._release(epoch)
            case _:
                super().answer(message)

    def _launch(self, epoch: int) -> None:
        if self.order is None or self.order.epoch != epoch or self.fetching is not None:
            self.say(epochs.NodeEnded(epoch, "it is not prepared (the agent was restarted)"))
            return
        self.drop()
        self.say(epochs.Spawned(epoch, self.order.rank, 1))
        self._node, self.launched = self.cluster.node(self.order.rank, epoch), self.order.pack
        self._node.hello()

    def _release(self, epoch: int) -> None:
        if self.order is not None and self.order.epoch == epoch:
            self.fetching = None
        if self.node is not None and self.node.epoch == epoch:
            self.drop()
            self.say(epochs.NodeEnded(epoch, "the master released it"))

    @property
    def node(self) -> "SimulatedNode | None":
        return None if self._node is None or self._node.dead else self._node

    def drop(self) -> None:
        if self.node is not None:
            self.node.die()

    def crash(self, cause: str) -> None:
        if self.node is not None:
            self.say(epochs.NodeEnded(self.node.epoch, cause))
            self.drop()

    def reset(self) -> None:
        self.drop()
        self.order = self.fetching = None

    def vanish(self) -> None:
        self.reset()
        self.spoke.close()
        self.gone = self.frozen = True

    def leave(self) -> None:
        if not self.frozen:
            self.say(epochs.Leaving(0))
            self.vanish()

    def come(self, *, anew: bool) -> None:
        if anew:
            self.reset()
            self.nonce += 1
        self.gone = self.frozen = False
        self.spoke = self.cluster.hub.spoke(self.name)
        self.introduce()


@dataclass
class _Work:
    request: GenerationRequest
    answer: list[int]
    parts: list[Message] = field(default_factory=list)
    steps: int = 0


class SimulatedNode(FakeNode):
    """Computes a part of every request in each step, as rank 0."""

    def __init__(self, cluster: "Cluster", rank: int, epoch: int) -> None:
        super().__init__(cluster, rank, epoch)
        self.cluster = cluster
        self.dead = self.halted = self.hung = False
        self.halted_at = 0.0
        self._halt: control.Halt | None = None  # that is not answered yet
        self.load_beats = cluster.load_beats
        self.works: dict[str, _Work] = {}
        self.compiling: dict[str, GenerationRequest] = {}

    def die(self) -> None:
        self.dead = self.frozen = True
        self.spoke.close()

    def say(self, message: Message) -> None:
        if not self.dead:
            super().say(message)

    def beat(self) -> None:
        if not self.joined or self.frozen:
            return
        if self.size and self.load_beats is not None:
            self._load()
        if self._halt is not None:
            name = self.epoch.to_bytes(16)
            self.say(control.Halted(self.epoch, self.rank, self._halt.following, name, ""))
            self.cluster.saved[self._halt.following] = name
            self._halt = None
        self.say(control.Heartbeat(self.epoch, self.rank, self.step, self.block, self.bytes_read))

    def _load(self) -> None:
        if self.load_beats:
            self.load_beats -= 1
            self.say(control.Loading(self.epoch, self.rank, 10 - self.load_beats, 10))
        elif self.pack in self.cluster.unloadable:
            self.fail("ReadFault", "the disk is broken")
            self.load_beats = None
        else:
            self.load_beats = None
            self.ready()

    def hello(self) -> None:
        self.size = 0
        super().hello()

    @property
    def pack(self) -> str:
        """The model that the master has launched."""
        serving = self.cluster.master._sessions.serving
        return "" if serving is None or serving.number != self.epoch else serving.served.pack_id

    def _check_model(self, request: GenerationRequest) -> None:
        law, asked = self.cluster.law, request.pack or self.pack
        law(asked == self.pack, "a request starts only while its model is served", asked, self.pack)
        for agent in self.cluster.machines.values():
            if agent.node is not None and agent.node.epoch == self.epoch:
                law(agent.launched == asked, "all nodes have the same model", agent.name, agent.launched)

    @property
    def serves(self) -> bool:
        return self.joined and not self.frozen and not self.hung and self.load_beats is None

    def answer(self, message: Message) -> None:
        match message:
            case control.Assign(nodes=nodes, collective=collective, snapshot=snapshot):
                saved = None if snapshot is None else snapshot.names
                self.cluster.law(
                    saved in (None, self.cluster.saved.get(self.epoch)), "what is restored was saved", saved
                )
                self.size = len(nodes)
                if listens(self.rank, len(nodes), collective):
                    self.say(control.Listening(self.epoch, self.rank, f"tcp://127.0.0.1:{7071 + self.rank}"))
            case control.Generate(epoch=epoch, request=request):
                self.cluster.law(
                    epoch == self.epoch and self.rank == 0, "requests go to rank 0 of their epoch"
                )
                self.cluster.law(
                    request.id not in self.works, "a node is asked once for a request", request.id
                )
                self._check_model(request)
                self.cluster.goes_on(request)
                self.works[request.id] = self._work(request)
            case control.Compile(request=request):
                self._check_model(request)
                self.compiling[request.id] = request
            case control.Cancel(request=name):
                self._cancel(name)
            case control.Resume():
                self.halted, self._halt = False, None
            case control.Halt():
                self.halted, self.halted_at, self._halt = True, self.cluster.clock.now(), message
            case control.Shutdown():
                self.die()
            case _:
                super().answer(message)

    def _work(self, request: GenerationRequest) -> _Work:
        work = _Work(request, list(request.answer_ids))
        if request.prompt_scores:
            work.parts += [
                control.PromptScores(self.epoch, request.id, 1 + place, (score,))
                for place, score in enumerate(formula.scores(request))
            ]
        if request.pooling != "none":
            work.parts.append(control.Embedding(self.epoch, request.id, formula.vector(request)))
        return work

    def _cancel(self, name: str) -> None:
        self.compiling.pop(name, None)
        if name in self.works:
            self._finish(self.works[name], "cancel")

    def compute(self) -> None:
        for name in list(self.compiling):
            del self.compiling[name]
            self.say(control.Compiled(self.epoch, name, 0.1))
        self.step += bool(self.works)
        for work in list(self.works.values()):
            if work.request.prompt_ids[0] == formula.POISON:
                self.cluster.rank_zero.cause = "it was killed by signal 11"
                self.die()
                return
            self._advance(work)

    def _advance(self, work: _Work) -> None:
        request = work.request
        work.steps += 1
        if work.parts:
            self.say(work.parts.pop(0))
        elif request.pooling != "none":
            self._finish(work, "stop")
        elif (reason := formula.ends(request, work.answer)) is not None:
            self._finish(work, reason)
        else:
            wrong = self.cluster.setup.error if len(work.answer) > 4 else 0
            token = formula.next_token(request, work.answer) + wrong
            work.answer.append(token)
            self.say(control.Token(self.epoch, request.id, len(work.answer) - 1, token, ()))

    def _finish(self, work: _Work, reason: control.FinishReason) -> None:
        request = work.request
        del self.works[request.id]
        tokens = len(work.answer)
        self.say(
            control.Finished(self.epoch, request.id, reason, len(request.prompt_ids), tokens, 0, work.steps)
        )
