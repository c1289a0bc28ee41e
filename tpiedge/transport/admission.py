"""Who may connect: ZeroMQ asks here (ZAP, RFC 27) before a CURVE handshake ends.

One thread per context answers. A hub has a domain of its own with its own list; a domain without a list, a
mechanism other than CURVE and a key that is not on the list are refused.
"""

import contextlib
import logging
import threading
from collections.abc import Mapping

import zmq
from zmq.utils import z85

from tpiedge.errors import UserError
from tpiedge.transport.endpoint import Counters
from tpiedge.transport.keys import is_key

__all__ = ["Admission", "Gatekeeper"]

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_log = logging.getLogger(__name__)


class Admission:
    """The list of one hub: public key (Z85) to peer name. Any thread may change it."""

    def __init__(self, allowed: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self.counters = Counters()
        self._names: dict[str, str] = {}
        self.admitted: frozenset[str] = frozenset()
        for key, name in allowed.items():
            self.admit(key, name)

    def admit(self, key: str, name: str) -> None:
        """Let `key` in as `name`, instead of the key that had this name before."""
        if not is_key(key) or not name or "/" in name:
            raise UserError(f"not a public key and a peer name: {len(key)} characters, {name!r}")
        with self._lock:
            kept = {known: other for known, other in self._names.items() if other != name}
            self._replace({**kept, key: name})

    def revoke(self, name: str) -> None:
        """What `name` still sends is dropped and counted from now on, and it cannot connect again."""
        with self._lock:
            self._replace({key: other for key, other in self._names.items() if other != name})

    def judge(self, key: str) -> str | None:
        """The name that belongs to `key`; None, and counted, where there is none."""
        with self._lock:
            name = self._names.get(key)
            self.counters.rejected += name is None
        return name

    def _replace(self, names: dict[str, str]) -> None:
        self._names = names
        self.admitted = frozenset(names.values())


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
        name = None
        if admission is not None and mechanism == b"CURVE" and len(credentials) == 1:
            name = admission.judge(z85.encode(credentials[0]).decode("ascii"))
        if name is None:
            _log.info(
                "refused a connection from %s: its key is not admitted", address.decode("ascii", "replace")
            )
            return [version, number, b"400", b"not admitted", b"", b""]
        return [version, number, b"200", b"", name.encode(), b""]
