"""Who may connect: ZeroMQ asks here (ZAP, RFC 27) before a CURVE handshake ends.

One thread per context answers. A hub has a domain of its own with its own list; a domain without a list, a
mechanism other than CURVE and a key that is not on the list are refused. A hub may let in a few keys that it does
not know as guests, for a short while: what they say goes to the code that admits newcomers, and nowhere else.
"""

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import UserError
from tpiedge.transport.endpoint import Counters
from tpiedge.transport.keys import is_key

__all__ = ["Admission", "Gatekeeper", "GuestPolicy"]

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_log = logging.getLogger(__name__)


_MAX_DENIED = 10_000


@dataclass(frozen=True, slots=True)
class GuestPolicy:
    """How unknown keys may connect: under the name that `name_of` gives them, for `stay_s`, `limit` at a time and
    `each` from one address.

    Where those places are taken, a newcomer gets that of the guest who came first, once that one has had `grace_s`.
    """

    name_of: Callable[[str], str]
    limit: int = 32
    each: int = 16
    stay_s: float = 20.0
    grace_s: float = 3.0


@dataclass(frozen=True, slots=True)
class _Guest:
    key: str
    since: float
    address: str


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

    def revoke(self, name: str) -> None:
        """What `name` still sends is dropped and counted from now on, and it cannot connect again, nor as a guest."""
        with self._lock:
            gone = [key for key, other in self._names.items() if other == name]
            guest = self._guests.pop(name, None)
            for key in [*gone, *([guest.key] if guest else [])]:
                self._deny(key)
            self._replace({key: other for key, other in self._names.items() if other != name})

    def deny(self, key: str) -> None:
        """`key` is no guest here, now or later, until it is admitted."""
        with self._lock:
            self._deny(key)
            self._guests = {name: guest for name, guest in self._guests.items() if guest.key != key}
            self._replace(self._names)

    def dismiss(self, name: str) -> None:
        """`name`, if it is a guest, is none any more; it may come back."""
        with self._lock:
            if name in self._guests:
                self._dismiss((name,))

    def overstayed(self) -> tuple[str, ...]:
        """Guests whose time is up, and who are dropped by this call: cut their connections."""
        if self._policy is None:
            return ()
        with self._lock:
            latest = self._clock.now() - self._policy.stay_s
            late = tuple(name for name, guest in self._guests.items() if guest.since <= latest)
            if late:
                self._dismiss(late)
        return late

    def address_of(self, guest: str) -> str:
        """The IP address that a guest connected from, "" where it is unknown."""
        found = self._guests.get(guest)
        return "" if found is None else found.address

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
        known = self._guests.pop(name, None)
        # Who connects again is no newcomer, and does not get more time.
        now = self._clock.now()
        if known is None and (name in self.admitted or not self._make_room(self._policy, address, now)):
            return None
        self._guests[name] = _Guest(key, now if known is None else known.since, address)
        self._replace(self._names)
        return name

    def _make_room(self, policy: GuestPolicy, address: str, now: float) -> bool:
        crowd = [name for name, guest in self._guests.items() if guest.address == address]
        if len(crowd) < policy.each:
            if len(self._guests) < policy.limit:
                return True
            crowd = list(self._guests)
        oldest = min(crowd, key=lambda name: self._guests[name].since)
        if self._guests[oldest].since + policy.grace_s > now:
            return False
        self._dismiss((oldest,))
        return True

    def _dismiss(self, names: tuple[str, ...]) -> None:
        self._guests = {name: guest for name, guest in self._guests.items() if name not in names}
        self._replace(self._names)

    def _deny(self, key: str) -> None:
        if self._policy is None:
            return
        self._denied[key] = None
        if len(self._denied) > _MAX_DENIED:
            del self._denied[next(iter(self._denied))]

    def _replace(self, names: dict[str, str]) -> None:
        self._names = names
        self.admitted = frozenset((*names.values(), *self._guests))
        self.changes.value += 1


class Gatekeeper:
    """The thread that answers ZAP requests of `context`; it ends when the context is terminated."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._domains: dict[bytes, Admission] = {}
        # Bound before any hub exists: a hub without a ZAP handler would admit every key.
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ADDRESS)
        self._thread = threading.Thread(target=self._serve, name="tpiedge-zap", daemon=True)
        self._thread.start()

    def guard(self, domain: bytes, admission: Admission) -> None:
        self._domains[domain] = admission

    def forget(self, domain: bytes) -> None:
        self._domains.pop(domain, None)

    def join(self) -> None:
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.closing(self._socket), contextlib.suppress(zmq.ContextTerminated):
            while True:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))

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
