"""Workers that were let in with a valid token, and do not keep to what is agreed."""

import contextlib
import secrets
from collections.abc import Callable, Iterator

import zmq

from tests.process.imposter.imposter import SLOW, Imposter, Mischief, Node
from tests.process.imposter.violations import VIOLATIONS
from tools.abusing.attack import Bout
from tools.abusing.target import Target
from tpiedge.errors import TpiedgeError
from tpiedge.host.addresses import FILES_OFFSET
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.transport.endpoint import FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.codec import encode
from tpiedge.wire.control import Heartbeat, Listening, Ready, Token
from tpiedge.wire.data import Fetch, FilePart, Survey
from tpiedge.wire.epochs import (
    AgentPulse,
    Capacity,
    Echo,
    Launch,
    Leaving,
    NodeEnded,
    Offer,
    PageFiles,
    Prepared,
    Preparing,
    Spawned,
)
from tpiedge.wire.fields import MAX_CONTROL_HEADER, Keeping, Message

_FLOOD = 30_000
_BURST = 200
#: So long an imposter with a part may take to be found out before the next one comes.
_TURN_S = 30.0


def imposters(target: Target, bout: Bout) -> None:
    """Members whose offers, heartbeats and messages are wrong. What they offer holds no share of the model."""
    while bout.goes_on(0.5):
        try:
            with _member(target) as link:
                _lie(link, bout)
        except TpiedgeError as error:
            bout.counts[f"refused: {type(error).__name__}"] += 1


def _lie(link: ZmqSpoke, bout: Bout) -> None:
    bout.counts["members"] += 1
    nonce = bout.rng.getrandbits(64)
    _send(link, encode(_offer(bout, nonce)))
    for _ in range(bout.rng.randint(5, 40)):
        if not bout.goes_on(0.1):
            return
        bout.counts["messages"] += 1
        chosen = bout.rng.random()
        if chosen < 0.3:
            _send(link, encode(_offer(bout, nonce)))
        elif chosen < 0.9:
            _send(link, encode(bout.rng.choice(_WRONG)(bout.rng.randrange(1, 100), link.name)))
        elif chosen < 0.98:
            _send(link, *bout.rng.choice(_MALFORMED)())
        else:
            _flood(link)
        with contextlib.suppress(TpiedgeError):
            while link.recv(0.0) is not None:
                bout.counts["heard"] += 1


def files_bursts(target: Target, bout: Bout) -> None:
    """A member that asks for files that do not exist, or does not read what it asked for, as fast as it can."""
    while bout.goes_on(0.2):
        keys = CurveKeys.generate()
        try:
            with (
                _member(target, keys),
                open_link(
                    target.address.beside(FILES_OFFSET),
                    target.master_key,
                    keys,
                    peer_name(keys.public),
                    plane=FILES,
                ) as link,
            ):
                bout.counts["members"] += 1
                _ask(target, link, bout)
        except TpiedgeError as error:
            bout.counts[f"refused: {type(error).__name__}"] += 1


def _ask(target: Target, link: ZmqSpoke, bout: Bout) -> None:
    reads = bout.rng.random() < 0.7
    number = 0
    for _ in range(bout.rng.randint(10, 200)):
        if not bout.goes_on(0.02):
            return
        for _ in range(_BURST):
            number += 1
            frame = encode(_fetch(target, bout, number, missing=reads))
            with contextlib.suppress(zmq.Again):
                link.socket.send(frame, zmq.NOBLOCK)
                bout.counts["asked"] += 1
        if reads:
            with contextlib.suppress(TpiedgeError):
                while link.recv(0.0) is not None:
                    bout.counts["answers"] += 1


def _fetch(target: Target, bout: Bout, number: int, *, missing: bool) -> Fetch:
    if not missing:
        return Fetch(1, number, target.pack, "manifest", "", 0, 1 << 20)
    pack = target.pack if bout.rng.random() < 0.5 else bout.rng.randbytes(32).hex()
    parts: tuple[FilePart, ...] = ("hashes", "blob")
    part = bout.rng.choice(parts)
    return Fetch(1, number, pack, part, bout.rng.randbytes(32).hex(), bout.rng.getrandbits(40), 1 << 16)


def imposter_nodes(target: Target, bout: Bout) -> None:
    """Members with a part of the plan, whose node breaks the rules in the survey, or instead of its first contribution,
    or floods the master."""
    while bout.left_s > 1:
        imposter = _Saboteur(target.token, target.pack, f"mallory-{secrets.token_hex(3)}")
        what = bout.rng.choice([*VIOLATIONS, *_SURVEY, *_ON_CONTROL, "flood"])
        imposter.sabotage = VIOLATIONS.get(what, VIOLATIONS["junk"])[0]
        imposter.on_survey = _SURVEY.get(what)
        imposter.on_control = _ON_CONTROL.get(what)
        bout.counts[what] += 1
        try:
            imposter.start()
            turn = bout.left_s - _TURN_S
            if imposter.ready.wait(min(_TURN_S, bout.left_s)):
                bout.counts["had a part"] += 1
                if what == "flood":
                    imposter.on_agent = _flood
            while bout.left_s > max(0.0, turn) and imposter.ready.is_set() and bout.goes_on(0.2):
                pass
        except TpiedgeError as error:
            bout.counts[f"refused: {type(error).__name__}"] += 1
        finally:
            imposter.leave()


class _Saboteur(Imposter):
    """Never contributes: whenever it is asked to, `sabotage` comes instead."""

    sabotage: Mischief

    @property
    def mischief(self) -> Mischief:
        return self._spoil

    @mischief.setter
    def mischief(self, _used: Mischief | None) -> None:
        """Does nothing."""

    def _spoil(self, node: Node) -> None:
        if node is not getattr(self, "_spoilt", None):
            self._spoilt = node
            self.sabotage(node)
            node.contribute = lambda *_, **__: None  # type: ignore[method-assign]

    def leave(self) -> None:
        if hasattr(self, "_link"):
            if self._thread.ident is None:
                self._link.close()
            else:
                self.close()


def _tell_rank_zero(node: Node, message: Message) -> None:
    assert node.tensors is not None, "there is no survey without a link to rank 0"
    node.tensors.send(message)


_SURVEY: dict[str, Mischief] = {
    "links that it cannot have": lambda node: _tell_rank_zero(node, node.links(0, 2)),
    "a survey of its own": lambda node: _tell_rank_zero(node, Survey(node.epoch, 1)),
    "silence in the survey": lambda _node: None,
}

_ON_CONTROL: dict[str, Callable[[ZmqSpoke], None]] = {
    "listening": lambda link: _send(link, encode(Listening(1, 2, "tcp://203.0.113.1:80"))),
    "as large as allowed": lambda link: _send(link, bytes(MAX_CONTROL_HEADER)),
}


@contextlib.contextmanager
def _member(target: Target, keys: CurveKeys | None = None) -> Iterator[ZmqSpoke]:
    """A link to the master that has just let the worker in."""
    keys = keys or CurveKeys.generate()
    token = parse_token(target.token)
    with open_link(token.address, token.master_key, keys, peer_name(keys.public)) as link:
        enrol(link, "mallory", token.secret)
        yield link


def _send(link: ZmqSpoke, *frames: bytes) -> None:
    """Past every check of the sender."""
    with contextlib.suppress(zmq.Again):
        link.socket.send_multipart(frames, zmq.NOBLOCK)


def _flood(link: ZmqSpoke) -> None:
    frame = encode(AgentPulse(0))
    for _ in range(_FLOOD):
        _send(link, frame)


def _offer(bout: Bout, nonce: int) -> Offer:
    """Absurd in every number, and without room for a share."""
    rate = bout.rng.choice([0.0, 1.0, SLOW, 1e12])
    capacity = Capacity(rate, bout.rng.choice([0.0, 1.0, rate]))
    name = bout.rng.choice(["mallory", "\x1b[2J" + "x" * 30, "ann", "node-0", "a/b", "\u202e\u2028"])
    return Offer(
        0, name, bout.rng.choice([nonce, nonce + 1]) & (1 << 64) - 1, "torch",
        bout.rng.randrange(1 << 31), bout.rng.choice([0, 1, 4096]), bout.rng.choice([0, 1, 1 << 62]), capacity,
        bout.rng.choice([0.0, 1.0, 1e15]), Keeping(bout.rng.choice(["none", "auto", "all"]), bout.rng.randrange(9)),
        *bout.rng.choices([0, 1, 1 << 62], k=2),
    )  # fmt: skip


#: By a number and the sender's name.
_WRONG: tuple[Callable[[int, str], Message], ...] = (
    lambda number, _: Launch(number),
    lambda number, _: Prepared(number, CurveKeys.generate().public),
    lambda number, _: Preparing(number, 1 << 63, 1, 1.0),
    lambda number, _: NodeEnded(number, "\x1b[31m" + "x" * 500),
    lambda number, _: Spawned(number, 1, 1),
    lambda number, _: Echo(0, number, bytes(1000)),
    lambda number, _: PageFiles(0, number % (1 << 32), 1, 1 << 63, 1, 1, "\x1b[31m"),
    lambda number, _: Heartbeat(number, 1, 1 << 62, 1, 1),
    lambda number, _: Ready(number, 0, 1),
    lambda number, _: Token(number, "cmpl-1", 1, 1, ()),
    lambda _number, _: Leaving(0),
)

_MALFORMED: tuple[Callable[[], tuple[bytes, ...]], ...] = (
    lambda: (bytes(MAX_CONTROL_HEADER),),
    lambda: (encode(AgentPulse(0)), b"more"),
    lambda: (b"\x91" * 60_000,),
    lambda: (b"\xdd\x7f\xff\xff\xff\x01",),
    lambda: (secrets.token_bytes(2000),),
    lambda: (b"",),
)
