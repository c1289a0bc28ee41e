"""Fake agents and nodes of a master: they do by themselves what is usual, and the test does the rest."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from tests.fakes.inprocess import InProcessSpoke
from tpiedge.kv.page_folder import PageFolder
from tpiedge.launch.bootstrap import control_name
from tpiedge.planner.network import listens
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire import control, epochs
from tpiedge.wire.fields import Keeping, Message
from tpiedge.wire.requests import GenerationRequest

if TYPE_CHECKING:
    from tests.unit.master.stories import Story


STATS = control.Stats(
    1, 0, 1, 1, 1, 1, 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 1, 1, 1, 1, 0.0, 0, 0, 1, 1, 0, 0, 1, 1,
    0, 0, 0, 0, 0.0, 0.0, 0,
)  # fmt: skip


def offer(nonce: int = 1, memory_bytes: int = 1 << 30, threads: int = 2) -> epochs.Offer:
    speed = epochs.Capacity(1e9, 2e9)
    return epochs.Offer(0, "pi", nonce, "avx2", threads, memory_bytes, 1, speed, 0.0, Keeping(), 0, 0)


class FakeRankZero:
    threads = 2
    pid = 7

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.epoch: int | None = None
        self.cause: str | None = None
        self.refusal: Exception | None = None  # why no process can be started
        self.memory_bytes = self.usable_bytes = 1 << 40
        self.pages = PageFolder(Path("pages"))

    def weigh(self) -> None:
        return

    def insist(self) -> bool:
        less, self.memory_bytes = self.memory_bytes, max(self.memory_bytes, self.usable_bytes)
        return self.memory_bytes > less

    def warm_if_possible(self) -> None:
        self.calls.append("warm")

    def launch(self, epoch: int, keys: CurveKeys, planned_bytes: int, pack: Path) -> None:
        self.calls.append(f"start {epoch}")
        if self.refusal is not None:
            raise self.refusal
        self.epoch, self.cause = epoch, None

    def exit_cause(self) -> str | None:
        return self.cause if self.epoch is not None else None

    def stop(self, grace_s: float = 0.0) -> None:
        self.calls.append("stop")
        self.epoch = None

    def close(self) -> None:
        self.calls.append("close")
        self.epoch = None


class FakeRegistrar:
    def __init__(self) -> None:
        self.members: set[str] = set()
        self.said: list[tuple[str, Message]] = []
        self.new: list[str] = []

    def handle(self, peer: str, message: Message) -> None:
        self.said.append((peer, message))

    def is_member(self, peer: str) -> bool:
        return peer in self.members

    def finish_joins(self) -> list[str]:
        new, self.new = self.new, []
        return new

    def tick(self) -> None:
        return


class _Player:
    def __init__(self, spoke: InProcessSpoke) -> None:
        self.spoke = spoke
        self.heard: list[Message] = []
        self.said = 0
        self.frozen = False

    def listen(self) -> None:
        while not self.frozen and (envelope := self.spoke.recv(0.0)) is not None:
            self.heard.append(envelope.message)
            self.answer(envelope.message)

    def answer(self, message: Message) -> None:
        raise NotImplementedError

    def say(self, message: Message) -> None:
        self.said += 1
        self.spoke.send(message)

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.heard)


class FakeAgent(_Player):
    def __init__(self, story: "Story", name: str) -> None:
        super().__init__(story.hub.spoke(name))
        self.name = name
        self.story = story
        self.prepares = True
        self.launches = True
        self.offers = True
        self.order: epochs.Prepare | None = None
        self.key = CurveKeys.generate().public

    def pulse(self) -> None:
        if not self.frozen:
            self.say(epochs.AgentPulse(0))

    def answer(self, message: Message) -> None:
        match message:
            case epochs.AskOffer() if self.offers:
                self.say(offer())
            case epochs.Probe(number=number, answer_bytes=count):
                self.say(epochs.Echo(0, number, bytes(count)))
            case epochs.Prepare():
                self.order, self.key = message, CurveKeys.generate().public
                if self.prepares:
                    self.prepared()
            case epochs.Launch(epoch=epoch) if self.order is not None and self.launches:
                self.say(epochs.Spawned(epoch, self.order.rank, 1))
                self.story.node(self.order.rank, epoch).hello()

    def preparing(self, done: int = 1, total: int = 10) -> None:
        assert self.order is not None
        self.say(epochs.Preparing(self.order.epoch, done, total, 1.0))

    def prepared(self, key: str | None = None) -> None:
        assert self.order is not None
        self.say(epochs.Prepared(self.order.epoch, self.key if key is None else key))

    def failed(self, cause: str = "the disk is full") -> None:
        assert self.order is not None
        self.say(epochs.NodeEnded(self.order.epoch, cause))

    @property
    def released(self) -> list[int]:
        return [message.epoch for message in self.heard if isinstance(message, epochs.Release)]


class FakeNode(_Player):
    def __init__(self, story: "Story", rank: int, epoch: int) -> None:
        super().__init__(story.hub.spoke(control_name(rank, epoch)))
        self.rank, self.epoch = rank, epoch
        self.loads = story.loads
        self.joined = False
        self.size = 1
        #: Whether it answers a Halt at once, and which pages it says it parked.
        self.halts = True
        self.parked = b"n" * 16
        #: How far it is, as its heartbeats and its measurements tell.
        self.step = self.block = self.bytes_read = 0
        self.compute_s = 0.0
        self.ffn_s = 0.0
        self.steps = 1
        self.told: Counter[str] = Counter()  # how many tokens of each request it has said

    def hello(self) -> None:
        self.joined = True
        self.say(control.Hello(0, self.rank))

    def beat(self) -> None:
        if self.joined and not self.frozen:
            self.say(control.Heartbeat(self.epoch, self.rank, self.step, self.block, self.bytes_read))

    def answer(self, message: Message) -> None:
        match message:
            case control.Assign(nodes=nodes, collective=collective):
                self.size = len(nodes)
                if listens(self.rank, len(nodes), collective):
                    self.say(control.Listening(self.epoch, self.rank, f"tcp://127.0.0.1:{7071 + self.rank}"))
                if self.loads:
                    self.ready()
            case control.AskStats():
                self.say(self.stats())
            case control.Halt(following=following) if self.halts:
                why = "" if self.parked else "no room"
                self.say(control.Halted(self.epoch, self.rank, following, self.parked, why))
            case control.Shutdown():
                self.frozen = True

    def stats(self) -> control.Stats:
        return structs.replace(
            STATS,
            epoch=self.epoch,
            rank=self.rank,
            peak_rss_bytes=self.count(control.AskStats),  # grows without any progress
            compute_s=self.compute_s,
            ffn_s=self.ffn_s,
            steps=self.steps,
            tokens=self.steps,
        )

    def ready(self) -> None:
        ways = ("mesh", "two-shot", "measured") if self.rank == 0 and self.size > 1 else ("", "", "")
        self.say(control.Ready(self.epoch, self.rank, 1, *ways))

    @property
    def asked(self) -> list[str]:
        return [message.request.id for message in self.heard if isinstance(message, control.Generate)]

    def order(self, name: str = "r-1") -> GenerationRequest:
        (found,) = [
            message.request
            for message in self.heard
            if isinstance(message, control.Generate) and message.request.id == name
        ]
        return found

    def token(self, name: str = "r-1", token: int = 5) -> None:
        self.told[name] += 1
        self.say(control.Token(self.epoch, name, self._tokens(name) - 1, token, ()))

    def finish(self, name: str = "r-1", reason: str = "stop") -> None:
        tokens = self._tokens(name)
        self.say(control.Finished(self.epoch, name, reason, 3, tokens, 0, self.told[name]))  # type: ignore[arg-type]

    def _tokens(self, name: str) -> int:
        before = len(self.order(name).answer_ids) if name in self.asked else 0
        return before + self.told[name]

    def fail(self, kind: str, message: str, name: str = "") -> None:
        self.say(control.Failed(self.epoch, self.rank, name, kind, message))
