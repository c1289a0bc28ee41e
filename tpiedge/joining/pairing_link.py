"""Pairs over the network: the master's hub beside its control port, and the worker's side.

The hub's key pair is the same in every installation. It proves nothing, so trust rests on the code.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import ProtocolError, TpiedgeError
from tpiedge.host.addresses import PAIRING_OFFSET, Address
from tpiedge.joining.connecting import hear, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.members import KnownWorker
from tpiedge.joining.pairing import BY_TOKEN, PAIRING_S, PairingMaster, PairingWorker, Pending
from tpiedge.transport.admission import UnknownPeerPolicy
from tpiedge.transport.endpoint import LinkReset, MalformedMessage, Plane, Unreachable
from tpiedge.transport.keys import CurveKeys, key_text, public_of
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Challenge, PairingRequest, PairingResult, Reveal

_PLANE = Plane(4096, 0, 16)
_SLICE_S = 0.2
_ANSWER_S = 5.0
_ANEW = "the same command shows another code"
_GONE = f"the master went away during the pairing: see whether it runs; {_ANEW}"
_POLICY = UnknownPeerPolicy(peer_name, limit=32, stay_s=PAIRING_S + 30.0, grace_s=10.0)


def introduction_keys() -> CurveKeys:
    secret = key_text(hashlib.sha256(b"tpiedge introduction: proves nothing").digest())
    return CurveKeys(public_of(secret), secret)


class PairingHub:
    """Listens on `address` (tcp://HOST:PORT) in its own thread until `close`. Calls `admit` for approved workers."""

    def __init__(
        self, address: str, master_key: str, admit: Callable[[KnownWorker], None], clock: Clock | None = None
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._admit = admit
        self._pairing = PairingMaster(master_key)
        self._lock = threading.Lock()
        self._hub = ZmqHub(address, introduction_keys(), "introduction", {}, plane=_PLANE, unknown=_POLICY)
        self.address = self._hub.address
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="tpiedge-pairing", daemon=True)
        self._thread.start()

    def pending(self) -> tuple[Pending, ...]:
        with self._lock:
            return self._pairing.pending(self._clock.now())

    def approve(self, code: str) -> KnownWorker:
        """Admits the worker that shows `code`. Thread-safe. Raises UserError or an error of `admit`."""
        with self._lock:
            paired, result = self._pairing.approve(code, self._clock.now())
        member = KnownWorker(paired.key, paired.host, time.time(), "code")
        try:
            self._admit(member)
        except TpiedgeError as error:
            self._hub.post(PairingResult(b"", f"it cannot let this worker in: {error}"), paired.name)
            raise
        self._hub.post(result, paired.name)
        return member

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._hub.close()

    def _serve(self) -> None:
        while not self._closing:
            for name in self._hub.admission.expire():
                self._drop(name, None)
            try:
                envelope = self._hub.recv(_SLICE_S)
                if envelope is not None:
                    self._receive(envelope.sender, envelope.message)
            except (LinkReset, MalformedMessage) as error:
                self._drop(error.peer, None)

    def _receive(self, name: str, message: Message) -> None:
        key = self._hub.admission.key_of(name)
        if key is None:
            return
        with self._lock:
            now = self._clock.now()
            answer: Challenge | PairingResult | None
            match message:
                case PairingRequest():
                    answer = self._pairing.request(name, key, self._hub.address_of(name), message, now)
                case Reveal():
                    answer = self._pairing.reveal(name, message, now)
                case _:
                    answer = PairingResult(b"", "only pairing is done on this port")
        if isinstance(answer, Challenge):
            with contextlib.suppress(Unreachable):
                self._hub.send(answer, to=name, timeout_s=0.0)
        elif answer is not None:
            self._drop(name, answer)

    def _drop(self, name: str, farewell: PairingResult | None) -> None:
        with self._lock:
            self._pairing.remove(name)
        self._hub.admission.dismiss(name)
        self._hub.disconnect(name, farewell)


def pair(
    address: Address,
    keys: CurveKeys,
    host: str,
    show_code: Callable[[str], None],
    timeout_s: float = PAIRING_S,
) -> str:
    """Pairs with the master whose control port has the address `address`. Waits until the user has typed the code on
    the master. Returns the master's key. Raises UserError, PeerError."""
    deadline = time.monotonic() + timeout_s
    worker = PairingWorker(keys.public, host)
    pairing_address, key = address.beside(PAIRING_OFFSET), introduction_keys().public
    shown = f"{address}, pairing port {pairing_address.port}"
    with open_link(pairing_address, key, keys, peer_name(keys.public), plane=_PLANE, shown=shown) as link:
        link.send(worker.request)
        silent = f"the master at {shown} does not answer: try again"
        answer = hear(link, time.monotonic() + _ANSWER_S, _GONE, silent)
        if isinstance(answer, PairingResult):
            worker.verify(answer)
        if not isinstance(answer, Challenge):
            raise ProtocolError(f"the master breaks the pairing protocol: {BY_TOKEN}")
        link.send(worker.prove(answer))
        show_code(worker.code)
        silent = (
            f"nobody typed 'tpiedge nodes approve {worker.code}' on the master's computer in time: {_ANEW}"
        )
        result = hear(link, deadline, _GONE, silent)
        if not isinstance(result, PairingResult):
            raise ProtocolError(f"the master breaks the pairing protocol: {BY_TOKEN}")
        return worker.verify(result)
