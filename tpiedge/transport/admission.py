"""Who may connect: ZeroMQ asks here (ZAP, RFC 27) before a CURVE handshake ends.

One thread per context answers. A hub has a domain of its own with its own list; a domain without a list, a
mechanism other than CURVE and a key that is not on the list are refused. A hub may let in a few keys that it does
not know as guests, for a short while: what they say goes to the code that admits newcomers, and nowhere else.
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

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_log = logging.getLogger(__name__)


#: After which a connection that was let in has been introduced, or is gone.
_INTRODUCTION_S = 6.0


@dataclass(frozen=True, slots=True)
class GuestPolicy:
    """How unknown keys may connect: under the name that `name_of` gives them, for `stay_s`, `limit` at a time and
    `each` from one address.

    Where those places are taken, a newcomer gets that of the guest who came first, once that one has had `grace_s`. A
    guest has one connection, and none instead of it before that one is closed: libzmq, which hands the routing id of
    the first to the second then, forgets the first one's descriptor for good.

    With `takes`, who finds no place may still show a ticket, which that looks at, for one of as many places more
    (in the thread of the hub's owner). Others hear `crowded`.
    """

    name_of: Callable[[str], str]
    limit: int = 32
    each: int = 16
    stay_s: float = 20.0
    grace_s: float = 3.0
    takes: Callable[[str, str], bool] | None = None
    crowded: Message | None = None


@dataclass(frozen=True, slots=True)
class _Guest:
    """`called`: when its last handshake ended. `connection`: None before it was introduced, or if it was gone then."""

    key: str
    since: float
    address: str
    called: float
    introduced: bool = False
    connection: TcpConnection | None = None
    has_ticket: bool = False

    def may_be_connected(self, now: float) -> bool:
        if not self.introduced:
            return now < self.called + _INTRODUCTION_S
        return self.connection is not None and is_open(self.connection)


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
        #: No guests, or no more, who may be connected; some who are not, too.
        self._others: dict[str, _Guest] = {}
        self._replaced: set[str] = set()
        self._denied: dict[str, None] = {}
        self.admitted: frozenset[str] = frozenset()
        #: Counts the changes of `admitted`, for code that cannot look at it.
        self.changes = ctypes.c_uint32()
        for key, name in allowed.items():
            self.admit(key, name)

    @property
    def guests(self) -> tuple[str, ...]:
        """Names of those whose key is not on the list, the longest here first."""
        return tuple(self._guests)

    def may_be_guest(self, name: str) -> bool:
        """Whether there are guests at all, and the peer `name` ("": not introduced yet) is no member."""
        return self._policy is not None and (name in self._guests or name not in self.admitted)

    def key_of(self, name: str) -> str | None:
        """The public key of a peer or guest."""
        with self._lock:
            guest = self._guests.get(name)
            if guest is not None:
                return guest.key
            return next((key for key, known in self._names.items() if known == name), None)

    def knows(self, key: str) -> bool:
        """Whether `key` is on the list, or is kept out."""
        with self._lock:
            return key in self._names or key in self._denied

    def admit(self, key: str, name: str) -> None:
        """Let `key` in as `name`, instead of the key that had this name before. A guest of that name stays on."""
        if not is_key(key) or not name or "/" in name:
            raise UserError(f"not a public key and a peer name: {len(key)} characters, {name!r}")
        with self._lock:
            kept = {known: other for known, other in self._names.items() if other != name}
            self._denied.pop(key, None)
            self._guests.pop(name, None)
            self._replace({**kept, key: name})

    def revoke(self, name: str, key: str = "") -> None:
        """What `name` still sends is dropped and counted from now on, and it cannot connect again, nor as a guest,
        until it is admitted; nor can `key`, where its name is not known here."""
        with self._lock:
            guest = self._guests.pop(name, None)
            gone = [known for known, other in self._names.items() if other == name]
            if self._policy is not None:
                for one in filter(None, (*gone, guest.key if guest else "", key)):
                    self._denied[one] = None
                while len(self._denied) > 10_000:
                    del self._denied[next(iter(self._denied))]
            self._replace({known: other for known, other in self._names.items() if other != name})

    def dismiss(self, name: str) -> None:
        """`name`, if it is a guest, is none any more; it may come back."""
        with self._lock:
            if name in self._guests:
                self._dismiss((name,))

    def overstayed(self) -> tuple[str, ...]:
        """Guests whose time is up, who are dropped by this call, and those whose place another has: cut their
        connections."""
        if self._policy is None:
            return ()
        with self._lock:
            latest = self._clock.now() - self._policy.stay_s
            late = tuple(name for name, guest in self._guests.items() if guest.since <= latest)
            if late:
                self._dismiss(late)
            late += tuple(self._replaced - self.admitted)
            self._replaced.clear()
        return late

    def introduced(self, name: str, connection: TcpConnection | None) -> None:
        """The connection over which `name`, if it is a guest, is heard; None where it is gone already."""
        with self._lock:
            guest = self._guests.get(name)
            if guest is not None:
                self._guests[name] = replace(guest, introduced=True, connection=connection)

    def judge(self, key: str, address: str = "") -> str | None:
        """The name that belongs to `key`, perhaps a guest's; None, and counted, where there is none."""
        with self._lock:
            name = self._names.get(key)
            if name is None:
                name = self._welcome(key, address)
            self.counters.rejected += name is None
        return name

    def _welcome(self, key: str, address: str) -> str | None:
        """The name of the guest with this key, if there is a place for it."""
        if self._policy is None or key in self._denied:
            return None
        name = self._policy.name_of(key)
        now = self._clock.now()
        known = self._guests.get(name)
        last = known or self._others.get(name)
        if (last is not None and last.may_be_connected(now)) or (known is None and name in self.admitted):
            return None
        guest = _Guest(key, now, address, now)
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
            self._keep(name, guest, now)
        else:
            return None
        return name

    def refusal(self, name: str, ticket: str, connection: TcpConnection | None) -> Message | None:
        """For `name`, who has found no place and shows a ticket: a guest's place now, or what it hears instead. None as
        well where there is nothing to say to it."""
        policy, caller = self._policy, self._others.get(name)
        if policy is None or policy.takes is None or caller is None or caller.introduced:
            return None
        has_ticket = policy.takes(ticket, name)
        with self._lock:
            if (
                self._others.get(name) is not caller
                or caller.key in self._denied
                or caller.key in self._names
            ):
                return None  # that changed meanwhile
            if has_ticket and self._push_out(self._crowd(has_ticket=True), policy.limit, caller.called):
                self._seat(name, replace(caller, has_ticket=True))
                return None
            self._others[name] = replace(caller, introduced=True, connection=connection)
        return policy.crowded

    def _seat(self, name: str, guest: _Guest) -> None:
        self._guests.pop(name, None)
        self._others.pop(name, None)
        self._guests[name] = guest
        self._replace(self._names)

    def _keep(self, name: str, guest: _Guest, now: float) -> None:
        """Remember that it may be connected. A look at the oldest two for each one that comes keeps them few."""
        for other in tuple(itertools.islice(self._others, 2)):
            one = self._others.pop(other)
            if one.may_be_connected(now):
                self._others[other] = one
        self._others[name] = guest

    def _crowd(self, *, has_ticket: bool) -> list[str]:
        return [name for name, guest in self._guests.items() if guest.has_ticket == has_ticket]

    def _push_out(self, crowd: list[str], limit: int, now: float) -> bool:
        """Whether there is room for one more of these; the one who came first may have to go for it."""
        assert self._policy is not None
        if len(crowd) < limit:
            return True
        oldest = min(crowd, key=lambda name: self._guests[name].since)
        if self._guests[oldest].since + self._policy.grace_s > now:
            return False
        self._dismiss((oldest,))
        self._replaced.add(oldest)
        return True

    def _dismiss(self, names: tuple[str, ...]) -> None:
        now = self._clock.now()
        for name in names:
            self._keep(name, self._guests[name], now)
        self._guests = {name: guest for name, guest in self._guests.items() if name not in names}
        self._replace(self._names)

    def _replace(self, names: dict[str, str]) -> None:
        self._names = names
        self.admitted = frozenset((*names.values(), *self._guests))
        self.changes.value += 1


class ZmqContext:
    """A context, and the thread that answers its ZAP requests once it has a hub. Close the endpoints first: `close`
    waits for them, and ends every thread.

    With `io_threads` > 1 the encryption of different connections runs in parallel.
    """

    def __init__(self, io_threads: int = 1) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._domains: dict[bytes, Admission] = {}
        self._thread: threading.Thread | None = None

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        return self._context.socket(kind)

    def guard(self, admission: Admission) -> bytes:
        """A new ZAP domain whose connections `admission` judges. Set it on a socket before it is bound."""
        if self._thread is None:
            # Bound before any hub exists: a hub without a ZAP handler would admit every key.
            requests = self._context.socket(zmq.REP)
            requests.linger = 0
            requests.bind(_ZAP_ADDRESS)
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
