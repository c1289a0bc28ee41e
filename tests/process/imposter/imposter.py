"""A worker that was let in with a real token, speaks the protocol until its node is ready, and then breaks it.

It is a thread on the package's own sockets, without weights: what it contributes honestly is zeros.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tpiedge.errors import PeerError
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.launch.bootstrap import control_name
from tpiedge.planner.network import listens
from tpiedge.transport.endpoint import CONTROL, TENSOR, Envelope, Plane, Unreachable
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire import epochs
from tpiedge.wire.control import Assign, Connect, Heartbeat, Hello, Ready
from tpiedge.wire.data import Hidden, LinkReport, MeasuredLink, Partial, Reduced, StepPlan, Survey
from tpiedge.wire.fields import Keeping, TensorHeader

#: Bytes of weights per second, of everybody else: so slow that links cost nothing beside it.
SLOW = 1e4
#: Of an imposter: with it and the others a token is so much faster that all are started anew, even where a busy
#: machine answers after two seconds.
_CLAIMED = 1.5 * SLOW
_BEAT_S = 0.3
_END_S = 10.0
# Of the demo model: the FFN of the last position alone.
_LAST_BLOCK = 11


@dataclass
class Node:
    """The imposter's part of an epoch."""

    prepare: epochs.Prepare
    keys: CurveKeys = field(default_factory=CurveKeys.generate)
    control: ZmqSpoke | None = None
    assign: Assign | None = None
    #: To rank 0, and to the worker of rank 1.
    tensors: ZmqSpoke | None = None
    beside: ZmqSpoke | None = None
    #: Of the step that runs: tokens and hidden size, and where it is.
    shape: tuple[int, int] = (0, 0)
    step: int = 0
    block: int = 0

    @property
    def rank(self) -> int:
        return self.prepare.rank

    @property
    def epoch(self) -> int:
        return self.prepare.epoch

    def partial(self, **changes: object) -> Partial:
        fields = {
            "epoch": self.epoch, "step": self.step, "block": self.block, "chunk": 0, "choices": 0, "flags": 0,
            "sender": self.rank, "tensor": TensorHeader("f32", self.shape),
        }  # fmt: skip
        return Partial(**{**fields, **changes})

    def contribute(self, value: float = 0.0, **changes: object) -> None:
        message = self.partial(**changes)
        self.tensors.send(message, np.full(message.tensor.shape, value, np.float32))

    def links(self, *ranks: int, sender: int | None = None) -> LinkReport:
        links = tuple(MeasuredLink(rank, 1e-3, 1e8) for rank in ranks)
        return LinkReport(self.epoch, self.rank if sender is None else sender, "mallory", 1, links)

    def raw(self, *frames: bytes) -> None:
        self.tensors.socket.send_multipart(frames)

    def close(self) -> None:
        for link in (self.control, self.tensors, self.beside):
            if link is not None:
                link.close()


Mischief = Callable[[Node], None]


class Imposter:
    """`mischief(node)` is called instead of the first contribution of a step; without one it contributes zeros. In the
    survey of the links it says that it reaches rank 0 alone, so that all goes by the star; or else, once,
    `on_survey(node)` is called.

    `on_agent(link)` and `on_control(link)` are called once, with the agent's and the node's link to the master, by the
    imposter's own thread.
    """

    def __init__(self, token: str, pack: str, name: str = "mallory") -> None:
        """Claims to hold the end of each layer of `pack`, and so becomes the last rank."""
        self.keys = CurveKeys.generate()
        self.name = name
        self.mischief: Mischief | None = None
        self.on_survey: Mischief | None = None
        self.on_agent: Callable[[ZmqSpoke], None] | None = None
        self.on_control: Callable[[ZmqSpoke], None] | None = None
        self.ready = threading.Event()
        self.failure: Exception | None = None
        self._token = parse_token(token)
        self._pack = pack
        self._node: Node | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="imposter", daemon=True)

    @property
    def peer(self) -> str:
        return peer_name(self.keys.public)

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._link = open_link(self._token.address, self._token.master_key, self.keys, self.peer)
        enrol(self._link, self.name, self._token.secret)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive()
        self._drop_node()
        self._link.close()

    def _run(self) -> None:
        try:
            self._say_offer()
            due = 0.0
            while not self._stopping.is_set():
                if time.monotonic() >= due:
                    due = time.monotonic() + _BEAT_S
                    self._beat()
                self._turn()
        except Exception as error:  # for the test to see
            self.failure = error

    def _turn(self) -> None:
        envelope = self._link.recv(0.0 if self._node else 0.05)
        if envelope is not None:
            self._hear(envelope)
        if self.on_agent is not None:
            act, self.on_agent = self.on_agent, None
            act(self._link)
        node = self._node
        if node is None:
            return
        if node.control is not None:
            self._hear_control(node)
        if node.tensors is not None:
            self._compute(node)

    def _say(self, message: object) -> None:
        with contextlib.suppress(Unreachable):
            self._link.send(message, timeout_s=0.5)

    def _say_offer(self) -> None:
        speed = epochs.Capacity(_CLAIMED, _CLAIMED)
        self._say(
            epochs.Offer(
                0,
                self.name,
                1,
                "torch",
                1,
                8 << 30,
                8 << 30,
                speed,
                0.0,
                Keeping(),
                0,
                0,
            )
        )

    def _beat(self) -> None:
        self._say(epochs.AgentPulse(0))
        node = self._node
        if node is not None and node.control is not None:
            with contextlib.suppress(Unreachable):
                node.control.send(Heartbeat(node.epoch, node.rank, node.step, node.block, 0), timeout_s=0.0)

    def _hear(self, envelope: Envelope) -> None:
        match envelope.message:
            case epochs.AskOffer():
                self._say_offer()
            case epochs.Probe(number=number, answer_bytes=count):
                self._say(epochs.Echo(0, number, bytes(count)))
            case epochs.Prepare() as order:
                self._drop_node()
                self._node = Node(order)
                self._say(epochs.Prepared(order.epoch, self._node.keys.public))
            case epochs.Launch(epoch=epoch) if self._node is not None and self._node.epoch == epoch:
                self._say(epochs.Spawned(epoch, self._node.rank, os.getpid()))
                self._node.control = self._spoke(self._node, CONTROL, control_name(self._node.rank, epoch))
                self._node.control.send(Hello(epoch, self._node.rank))
            case epochs.Release(epoch=epoch) if self._node is not None and self._node.epoch == epoch:
                self._drop_node()
                self._say(epochs.NodeEnded(epoch, "the master released it"))

    def _spoke(
        self, node: Node, plane: Plane, name: str, address: str = "", key: str = "", hub_name: str = "hub"
    ) -> ZmqSpoke:
        address, key = address or self._token.address.zmq, key or self._token.master_key
        return ZmqSpoke(address, key, node.keys, name, hub_name=hub_name, plane=plane)

    def _hear_control(self, node: Node) -> None:
        with contextlib.suppress(PeerError):
            envelope = node.control.recv(0.0)
            match envelope.message if envelope is not None else None:
                case Assign() as assign:
                    assert not listens(assign.rank, len(assign.nodes), assign.collective)
                    node.assign = assign
                case Connect(endpoints=endpoints):
                    self._connect(node, dict(endpoints))
                    node.control.send(Ready(node.epoch, node.rank, 1))
                    self.ready.set()
        if self.on_control is not None and self.ready.is_set():
            act, self.on_control = self.on_control, None
            act(node.control)

    def _connect(self, node: Node, endpoints: dict[int, str]) -> None:
        keys, name = dict(node.assign.peer_keys), f"node-{node.rank}"
        node.tensors = self._spoke(node, TENSOR, name, endpoints[0], keys[0])
        if 1 in endpoints:
            node.beside = self._spoke(node, TENSOR, name, endpoints[1], keys[1])

    def _compute(self, node: Node) -> None:
        envelope = node.tensors.recv(0.02)
        match envelope.message if envelope is not None else None:
            case epochs.Probe(number=number, answer_bytes=count):
                node.tensors.send(epochs.Echo(node.epoch, number, bytes(count)))
            case Survey(turn=turn) if turn == node.rank:
                if self.on_survey is not None:
                    act, self.on_survey = self.on_survey, None
                    act(node)
                    return
                node.tensors.send(node.links(0))
            case StepPlan(step=step):
                node.step, node.block = step, 0
            case Hidden(tensor=header):
                node.shape = header.shape
                if self.mischief is not None:
                    act, self.mischief = self.mischief, None
                    act(node)
                    return
                node.contribute()
            case Reduced():
                node.block += 1
                if node.block == _LAST_BLOCK:
                    node.shape = (1, node.shape[1])
                node.contribute()

    def _drop_node(self) -> None:
        self.ready.clear()
        if self._node is not None:
            self._node.close()
            self._node = None
