"""Decides who may connect: ZeroMQ asks here (ZAP, RFC 27) before a CURVE handshake ends.

One thread per context answers. Every hub is a ZAP domain with a list of keys; any other domain, mechanism or key is
refused. A hub may let a few unknown keys in as guests; their messages go only to the code that admits newcomers.
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

#: Time in which an admitted connection is introduced, or gone.
_INTRODUCTION_S = 6.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GuestPolicy:
    """Unknown keys connect under the name from `name_of`, for `stay_s`, `limit` at a time and `each` per address. If no
    place is free, a newcomer replaces the oldest guest that has had `grace_s`, or, with `takes`, which the hub's owner
    calls, shows a ticket for one of `limit` further places. All others hear `crowded`. A guest has one connection:
    libzmq would give a second the routing id."""

    name_of: Callable[[str], str]
    limit: int = 32
    each: int = 16
    stay_s: float = 20.0
    grace_s: float = 3.0
    takes: Callable[[str, str], bool] | None = None
    crowded: Message | None = None


@dataclass(frozen=True, slots=True)
class _Guest:
    """`until`: when its latest connection is introduced or gone; 0 after that. `connection`: None if it was gone."""

    key: str
    since: float
    address: str
    until: float
    connection: TcpConnection | None = None
    has_ticket: bool = False

    def may_be_connected(self, now: float) -> bool:
        return now < self.until or (self.connection is not None and is_open(self.connection))


class Admission:
    """The list of one hub: public key (Z85) to peer name. Any thread may change it."""

    def __init__(
        self, allowed: Mapping[str, str], guests: GuestPolicy | None = None, clock: Clock | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._policy = guests
        self._clock = clock or MonotonicClock()
        self.counters = Counters()
        self._names: dict[str, str] = {}
        self._guests: dict[str, _Guest] = {}
        #: Peers that are no guests (any more) and may still be connected.
        self._others: dict[str, _Guest] = {}
        self._replaced: set[str] = set()
        self._denied: dict[str, None] = {}
        self.guests: tuple[str, ...] = ()
        self.admitted: frozenset[str] = frozenset()
        #: Counts the changes of `admitted`, for native code.
        self.changes = ctypes.c_uint32()
        for key, name in allowed.items():
            self.admit(key, name)

    def may_be_guest(self, name: str) -> bool:
        """False for members and without guests; `name` is "" before the introduction."""
        return self._policy is not None and (name in self._guests or name not in self.admitted)

    def key_of(self, name: str) -> str | None:
        with self._lock:
            guest = self._guests.get(name)
            if guest is not None:
                return guest.key
            return next((key for key, known in self._names.items() if known == name), None)

    def knows(self, key: str) -> bool:
        with self._lock:
            return key in self._names or key in self._denied

    def admit(self, key: str, name: str) -> None:
        """Admits `key` as `name`, in place of the key that had this name. A connected guest of that name stays."""
        if not is_key(key) or not name or "/" in name:
            raise UserError(f"not a public key and a peer name: {len(key)} characters, {name!r}")
        with self._lock:
            kept = {known: other for known, other in self._names.items() if other != name}
            self._denied.pop(key, None)
            self._guests.pop(name, None)
            self._replace({**kept, key: name})

    def revoke(self, name: str, key: str = "") -> None:
        """Drops what `name` still sends; keeps its key and `key` out, as guests too, until they are admitted."""
        with self._lock:
            guest = self._guests.pop(name, None)
            gone = [known for known, other in self._names.items() if other == name]
            for one in filter(None, (*gone, guest.key if guest else "", key)):
                self._denied[one] = None
            while len(self._denied) > 10_000:
                del self._denied[next(iter(self._denied))]
            self._replace({known: other for known, other in self._names.items() if other != name})

    def dismiss(self, name: str) -> None:
        """Ends the stay of the guest `name`, which may come back; does nothing for a member."""
        with self._lock:
            if name in self._guests:
                self._dismiss(name)

    def overstayed(self) -> tuple[str, ...]:
        """Drops overdue guests; returns them and the replaced ones, for the caller to cut."""
        if self._policy is None:
            return ()
        with self._lock:
            latest = self._clock.now() - self._policy.stay_s
            late = tuple(name for name, guest in self._guests.items() if guest.since <= latest)
            for name in late:
                self._dismiss(name)
            late += tuple(self._replaced - self.admitted)
            self._replaced.clear()
        return late

    def introduced(self, name: str, connection: TcpConnection | None) -> None:
        with self._lock:
            guest = self._guests.get(name)
            if guest is not None:
                self._guests[name] = replace(guest, until=0.0, connection=connection)

    def judge(self, key: str, address: str = "") -> str | None:
        """Returns the name for `key`, a guest's too; None (counted) refuses it."""
        with self._lock:
            name = self._names.get(key)
            if name is None:
                name = self._welcome(key, address)
            self.counters.refused += name is None
        return name

    def _welcome(self, key: str, address: str) -> str | None:
        if self._policy is None or key in self._denied:
            return None
        name = self._policy.name_of(key)
        now = self._clock.now()
        known = self._guests.get(name)
        last = known or self._others.get(name)
        if (last is not None and last.may_be_connected(now)) or (known is None and name in self.admitted):
            return None
        guest = _Guest(key, now, address, now + _INTRODUCTION_S)
        if known is not None:  # no newcomer, and does not get more time
            self._seat(name, replace(guest, since=known.since, has_ticket=known.has_ticket))
            return name
        crowd, limit = self._crowd(has_ticket=False), self._policy.limit
        neighbours = [other for other in crowd if self._guests[other].address == address]
        if len(neighbours) >= self._policy.each:
            crowd, limit = neighbours, self._policy.each
        if self._push_out(crowd, limit, now):
            self._seat(name, guest)
        elif self._policy.takes is not None:
            self._keep(name, guest)
        else:
            return None
        return name

    def refusal(self, name: str, ticket: str, connection: TcpConnection | None) -> Message | None:
        """Gives `name`, which found no place, one for its ticket, or returns what to answer, if anything."""
        policy, caller = self._policy, self._others.get(name)
        if policy is None or policy.takes is None or caller is None or not caller.until:
            return None
        has_ticket = policy.takes(ticket, name)
        with self._lock:
            known = caller.key in self._denied or caller.key in self._names
            if known or self._others.get(name) is not caller:
                return None  # that changed meanwhile
            called = caller.until - _INTRODUCTION_S  # grace counts to its handshake: the owner may be slow
            if has_ticket and self._push_out(self._crowd(has_ticket=True), policy.limit, called):
                self._seat(name, replace(caller, has_ticket=True))
                return None
            self._others[name] = replace(caller, until=0.0, connection=connection)
        return policy.crowded

    def _seat(self, name: str, guest: _Guest) -> None:
        self._guests.pop(name, None)
        self._others.pop(name, None)
        self._guests[name] = guest
        self._replace(self._names)

    def _keep(self, name: str, guest: _Guest) -> None:
        """Remembers that it may be connected, and drops up to two old entries that are not: so they stay few."""
        for other in tuple(itertools.islice(self._others, 2)):
            one = self._others.pop(other)
            if one.may_be_connected(self._clock.now()):
                self._others[other] = one
        self._others[name] = guest

    def _crowd(self, *, has_ticket: bool) -> list[str]:
        return [name for name, guest in self._guests.items() if guest.has_ticket == has_ticket]

    def _push_out(self, crowd: list[str], limit: int, now: float) -> bool:
        """Returns whether there is room for one more in `crowd`; the oldest guest may have to go for it."""
        assert self._policy is not None
        if len(crowd) < limit:
            return True
        oldest = min(crowd, key=lambda name: self._guests[name].since)
        if self._guests[oldest].since + self._policy.grace_s > now:
            return False
        self._dismiss(oldest)
        self._replaced.add(oldest)
        return True

    def _dismiss(self, name: str) -> None:
        self._keep(name, self._guests.pop(name))
        self._replace(self._names)

    def _replace(self, names: dict[str, str]) -> None:
        self._names = names
        self.guests = tuple(self._guests)
        self.admitted = frozenset((*names.values(), *self.guests))
        self.changes.value += 1


class ZmqContext:
    """A context and its ZAP thread. `close` waits for all endpoints to close. `io_threads` encrypt in parallel."""

    def __init__(self, io_threads: int = 1) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._domains: dict[bytes, Admission] = {}
        self._thread: threading.Thread | None = None

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        return self._context.socket(kind)

    def guard(self, admission: Admission) -> bytes:
        """Returns a new ZAP domain that asks `admission`. Set it on a socket before the bind."""
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
            name = admission.judge(z85.encode(credentials[0]).decode("ascii"), source)
        if name is None:
            _log.info("refused a connection from %s: its key is not admitted", source)
            return [version, number, b"400", b"not admitted", b"", b""]
        return [version, number, b"200", b"", name.encode(), b""]
