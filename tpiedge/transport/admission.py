"""Decides by its key which peer may connect. ZeroMQ asks (ZAP, RFC 27) before a CURVE handshake ends.

One thread per context answers. Every hub is a ZAP domain with a list of keys. A hub may also accept a few unknown keys.
Messages from unknown keys reach only code that admits newcomers.
"""

import contextlib
import ctypes
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import zmq
from zmq.utils import z85

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import UserError
from tpiedge.transport.cutting import TcpConnection, is_open
from tpiedge.transport.endpoint import Counters
from tpiedge.transport.keys import is_key
from tpiedge.wire.fields import Message

#: Within this time a connection whose key was accepted is introduced or gone.
_INTRODUCTION_S = 6.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnknownPeerPolicy:
    """Limits the peers with unknown keys. Each such peer has one connection."""

    name_of: Callable[[str], str]
    limit: int = 32  # places for peers, and further places for peers with tickets
    per_address: int = 16  # of `limit`, the most from one address
    stay_s: float = 20.0
    grace_s: float = 3.0  # then a newcomer may replace the oldest peer
    accepts_ticket: Callable[[str, str], bool] | None = None  # runs in the hub's thread
    refusal: Message | None = None  # for peers without a place


@dataclass(frozen=True, slots=True)
class _UnknownPeer:
    key: str
    since: float
    address: str
    until: float  # when its introduction is due; 0 after it
    connection: TcpConnection | None = None  # None before the introduction, and if the connection is gone
    has_ticket: bool = False

    def may_be_connected(self, now: float) -> bool:
        return now < self.until or (self.connection is not None and is_open(self.connection))


class Admission:
    """The public keys (Z85) that a hub admits, each with a peer name. Thread-safe."""

    def __init__(
        self, allowed: Mapping[str, str], policy: UnknownPeerPolicy | None = None, clock: Clock | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._policy = policy
        self._clock = clock or MonotonicClock()
        self.counters = Counters()
        self._names: dict[str, str] = {}
        self._unknown: dict[str, _UnknownPeer] = {}
        #: Peers that have no place (any more) and may still be connected.
        self._others: dict[str, _UnknownPeer] = {}
        self._replaced: set[str] = set()
        self._denied: dict[str, None] = {}
        self.unknown_peers: tuple[str, ...] = ()
        self.admitted: frozenset[str] = frozenset()
        #: Counts the changes of `admitted`, for native code.
        self.changes = ctypes.c_uint32()
        for key, name in allowed.items():
            self.admit(key, name)

    def may_be_unknown(self, name: str) -> bool:
        """Whether the peer's key may be unknown. `name` is "" before the introduction."""
        return self._policy is not None and (name in self._unknown or name not in self.admitted)

    def key_of(self, name: str) -> str | None:
        with self._lock:
            peer = self._unknown.get(name)
            if peer is not None:
                return peer.key
            return next((key for key, known in self._names.items() if known == name), None)

    def knows(self, key: str) -> bool:
        with self._lock:
            return key in self._names or key in self._denied

    def admit(self, key: str, name: str) -> None:
        """Admits `key` under `name`, in place of the old key of `name`."""
        if not is_key(key) or not name or "/" in name:
            raise UserError(f"not a public key and a peer name: {len(key)} characters, {name!r}")
        with self._lock:
            kept = {known: other for known, other in self._names.items() if other != name}
            self._denied.pop(key, None)
            self._unknown.pop(name, None)
            self._replace({**kept, key: name})

    def revoke(self, name: str, key: str = "") -> None:
        """Refuses `key` and the key of `name` until they are admitted again. Later messages of `name` are dropped."""
        with self._lock:
            peer = self._unknown.pop(name, None)
            gone = [known for known, other in self._names.items() if other == name]
            for one in filter(None, (*gone, peer.key if peer else "", key)):
                self._denied[one] = None
            while len(self._denied) > 10_000:
                del self._denied[next(iter(self._denied))]
            self._replace({known: other for known, other in self._names.items() if other != name})

    def dismiss(self, name: str) -> None:
        """Removes an unknown peer, which may come back."""
        with self._lock:
            if name in self._unknown:
                self._dismiss(name)

    def expire(self) -> tuple[str, ...]:
        """Removes overdue unknown peers. Returns the names of peers to disconnect."""
        if self._policy is None:
            return ()
        with self._lock:
            latest = self._clock.now() - self._policy.stay_s
            late = tuple(name for name, peer in self._unknown.items() if peer.since <= latest)
            for name in late:
                self._dismiss(name)
            late += tuple(self._replaced - self.admitted)
            self._replaced.clear()
        return late

    def introduced(self, name: str, connection: TcpConnection | None) -> None:
        with self._lock:
            peer = self._unknown.get(name)
            if peer is not None:
                self._unknown[name] = replace(peer, until=0.0, connection=connection)

    def authenticate(self, key: str, address: str = "") -> str | None:
        """Returns the peer's name; None if the key is refused."""
        with self._lock:
            name = self._names.get(key)
            if name is None:
                name = self._admit_unknown(key, address)
            self.counters.refused += name is None
        return name

    def _admit_unknown(self, key: str, address: str) -> str | None:
        if self._policy is None or key in self._denied:
            return None
        name = self._policy.name_of(key)
        now = self._clock.now()
        known = self._unknown.get(name)
        last = known or self._others.get(name)
        if (last is not None and last.may_be_connected(now)) or (known is None and name in self.admitted):
            return None
        peer = _UnknownPeer(key, now, address, now + _INTRODUCTION_S)
        if known is not None:  # it is not a newcomer, and gets no more time
            self._add(name, replace(peer, since=known.since, has_ticket=known.has_ticket))
            return name
        group, limit = self._unknown_names(has_ticket=False), self._policy.limit
        neighbours = [other for other in group if self._unknown[other].address == address]
        if len(neighbours) >= self._policy.per_address:
            group, limit = neighbours, self._policy.per_address
        if self._make_room(group, limit, now):
            self._add(name, peer)
        elif self._policy.accepts_ticket is not None:
            self._remember(name, peer)
        else:
            return None
        return name

    def refusal(self, name: str, ticket: str, connection: TcpConnection | None) -> Message | None:
        """Gives a waiting peer a place. Returns a refusal if the ticket is invalid or all places are taken. Returns
        None if the peer gets a place or does not wait for one."""
        policy, caller = self._policy, self._others.get(name)
        if policy is None or policy.accepts_ticket is None or caller is None or not caller.until:
            return None
        has_ticket = policy.accepts_ticket(ticket, name)
        with self._lock:
            known = caller.key in self._denied or caller.key in self._names
            if known or self._others.get(name) is not caller:
                return None  # it was admitted, denied or replaced meanwhile
            called = caller.until - _INTRODUCTION_S  # grace counts up to its handshake: the owner may be slow
            if has_ticket and self._make_room(self._unknown_names(has_ticket=True), policy.limit, called):
                self._add(name, replace(caller, has_ticket=True))
                return None
            self._others[name] = replace(caller, until=0.0, connection=connection)
        return policy.refusal

    def _add(self, name: str, peer: _UnknownPeer) -> None:
        self._unknown.pop(name, None)
        self._others.pop(name, None)
        self._unknown[name] = peer
        self._replace(self._names)

    def _remember(self, name: str, peer: _UnknownPeer) -> None:
        # Forgets up to two old peers that are not connected, so that few are kept.
        for other in tuple(itertools.islice(self._others, 2)):
            one = self._others.pop(other)
            if one.may_be_connected(self._clock.now()):
                self._others[other] = one
        self._others[name] = peer

    def _unknown_names(self, *, has_ticket: bool) -> list[str]:
        return [name for name, peer in self._unknown.items() if peer.has_ticket == has_ticket]

    def _make_room(self, group: list[str], limit: int, now: float) -> bool:
        """Whether `group` has room. May remove the oldest peer."""
        assert self._policy is not None
        if len(group) < limit:
            return True
        oldest = min(group, key=lambda name: self._unknown[name].since)
        if self._unknown[oldest].since + self._policy.grace_s > now:
            return False
        self._dismiss(oldest)
        self._replaced.add(oldest)
        return True

    def _dismiss(self, name: str) -> None:
        self._remember(name, self._unknown.pop(name))
        self._replace(self._names)

    def _replace(self, names: dict[str, str]) -> None:
        self._names = names
        self.unknown_peers = tuple(self._unknown)
        self.admitted = frozenset((*names.values(), *self.unknown_peers))
        self.changes.value += 1


class ZmqContext:
    """A context and its ZAP thread. `io_threads` threads encrypt. `close` waits until all sockets are closed."""

    def __init__(self, io_threads: int = 1) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._domains: dict[bytes, Admission] = {}
        self._thread: threading.Thread | None = None

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        return self._context.socket(kind)

    def guard(self, admission: Admission) -> bytes:
        """Returns a new ZAP domain, to be set before the bind."""
        if self._thread is None:
            # Bound before any hub exists: a hub without a ZAP handler would admit every key.
            requests = self._context.socket(zmq.REP)
            requests.linger = 0
            requests.bind("inproc://zeromq.zap.01")
            self._thread = threading.Thread(
                target=self._serve, args=(requests,), name="tpiedge-zap", daemon=True
            )
            self._thread.start()
        domain = f"hub-{len(self._domains)}".encode()
        self._domains[domain] = admission
        return domain

    def close(self) -> None:
        self._context.term()
        if self._thread is not None:
            self._thread.join()

    def _serve(self, requests: zmq.Socket[bytes]) -> None:
        with contextlib.closing(requests), contextlib.suppress(zmq.ContextTerminated):
            while True:
                requests.send_multipart(self._answer(requests.recv_multipart()))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, domain, address, _identity, mechanism, *credentials = request
        admission = self._domains.get(domain)
        source = address.decode("ascii", "replace")
        name = None
        if admission is not None and mechanism == b"CURVE" and len(credentials) == 1:
            name = admission.authenticate(z85.encode(credentials[0]).decode("ascii"), source)
        if name is None:
            _log.info("refused a connection from %s: its key is not admitted", source)
            return [version, number, b"400", b"not admitted", b"", b""]
        return [version, number, b"200", b"", name.encode(), b""]
