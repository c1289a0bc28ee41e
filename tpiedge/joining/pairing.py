"""Lets a worker join without a token: the user types the worker's short code into the master.

The worker draws the code, a secret of 40 bits, and never sends it. Both sides derive a key by a slow hash, salted with
both public keys and both nonces. First, the worker proves that it knows the code (Reveal). Then the master proves the
same (PairingResult). A proof holds for one pair of keys, so an attacker who swaps a key has no proof. A guess takes 16
MiB of memory, so a search takes years.
"""

import base64
import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass, field, replace

from tpiedge import __version__
from tpiedge.errors import ProtocolError, UserError
from tpiedge.sanitise import sanitised_line, sanitised_name
from tpiedge.transport.keys import is_key
from tpiedge.wire.codec import PROTOCOL
from tpiedge.wire.join import Challenge, PairingRequest, PairingResult, Reveal

PAIRING_S = 600.0
MAX_PENDING = 8
MAX_PER_SOURCE = 4
BY_TOKEN = "join with a token instead ('tpiedge token create' on the master's computer)"
_NONCE_BYTES = 16
_MOST_WRONG = 10
"""The most wrong codes per minute."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A worker that waits for approval. `name` is its peer name."""

    name: str
    host: str
    address: str
    since: float
    key: str = ""
    transcript: bytes = field(default=b"", repr=False)
    proof: bytes = field(default=b"", repr=False)
    """Empty until the worker's Reveal."""


class PairingMaster:
    """The master's side. Times are seconds of the caller's clock. The worker's connection must prove its `key`."""

    def __init__(self, master_key: str) -> None:
        self._master_key = master_key
        self._workers: dict[str, Pending] = {}
        #: Times of the latest wrong codes.
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)

    def pending(self, now: float) -> tuple[Pending, ...]:
        self._expire(now)
        return tuple(worker for worker in self._workers.values() if worker.proof)

    def request(
        self, name: str, key: str, address: str, request: PairingRequest, now: float
    ) -> Challenge | PairingResult:
        """Answers a worker's request. A PairingResult is a refusal, after which the caller ends the connection."""
        self._expire(now)
        refusal = self._reason_against(name, address, request)
        if refusal:
            return PairingResult(b"", refusal)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        transcript = _transcript(self._master_key, key, nonce, request.nonce)
        self._workers[name] = Pending(name, sanitised_name(request.name), address, now, key, transcript)
        return Challenge(self._master_key, nonce)

    def reveal(self, name: str, reveal: Reveal, now: float) -> PairingResult | None:
        """Returns a refusal, or None if the worker now waits for the user."""
        self._expire(now)
        worker = self._workers.get(name)
        if worker is None or worker.proof or len(reveal.proof) != hashlib.sha256().digest_size:
            self._workers.pop(name, None)
            return PairingResult(b"", "unexpected message: start the worker again")
        self._workers[name] = replace(worker, proof=reveal.proof)
        return None

    def remove(self, name: str) -> None:
        self._workers.pop(name, None)

    def approve(self, code: str, now: float) -> tuple[Pending, PairingResult]:
        """Returns the worker that shows `code`, and the result to send it. Takes up to 0.5 s. Raises UserError."""
        self._expire(now)
        if len(self._wrong) == _MOST_WRONG and now < self._wrong[0] + 60.0:
            raise UserError("too many wrong codes: wait a minute")
        secret = normal_code(code)
        for name, worker in self._workers.items():
            if worker.proof:
                key = _slow_key(secret, worker.transcript)
                if hmac.compare_digest(worker.proof, _proof(key, "worker")):
                    del self._workers[name]
                    return worker, PairingResult(_proof(key, "master"), "")
        self._wrong.append(now)
        raise UserError(
            "no waiting worker shows this code: compare it with the worker's screen; codes are valid for ten minutes; "
            "if yours is right and newer, the connection may be intercepted: stop the worker"
        )

    def _reason_against(self, name: str, address: str, request: PairingRequest) -> str:
        others = [worker for worker in self._workers.values() if worker.name != name]
        if request.protocol != PROTOCOL:
            return (
                f"the worker has tpiedge {sanitised_name(request.version)} (protocol {request.protocol}), the master "
                f"{__version__} (protocol {PROTOCOL}): install the same on both"
            )
        if len(request.nonce) != _NONCE_BYTES:
            return "not a pairing request"
        if len(others) >= MAX_PENDING or sum(one.address == address for one in others) >= MAX_PER_SOURCE:
            return "too many workers wait to be approved: approve those first, or wait ten minutes"
        return ""

    def _expire(self, now: float) -> None:
        self._workers = {name: one for name, one in self._workers.items() if now < one.since + PAIRING_S}


class PairingWorker:
    """The worker's side. Send `request`, `prove` the code, show `code`, then `verify` the result."""

    def __init__(self, public_key: str, host: str) -> None:
        self._key = public_key
        self._secret = base64.b32encode(secrets.token_bytes(5)).decode("ascii")
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._slow = b""
        self._master_key = ""
        self.request = PairingRequest(PROTOCOL, __version__, host[:64], self._nonce)

    @property
    def code(self) -> str:
        """The code, XXXX-XXXX, only for the screen."""
        return f"{self._secret[:4]}-{self._secret[4:]}"

    def prove(self, challenge: Challenge) -> Reveal:
        """Answers a challenge. Raises ProtocolError for a bad or a second challenge."""
        # Each challenge allows a guess at the code.
        if self._slow or not is_key(challenge.master_key) or len(challenge.nonce) != _NONCE_BYTES:
            raise ProtocolError(f"the master breaks the pairing protocol: {BY_TOKEN}")
        transcript = _transcript(challenge.master_key, self._key, challenge.nonce, self._nonce)
        self._master_key = challenge.master_key
        self._slow = _slow_key(self._secret, transcript)
        return Reveal(_proof(self._slow, "worker"))

    def verify(self, result: PairingResult) -> str:
        """Returns the master's key. Raises UserError if `result` has no valid proof."""
        if not result.proof:
            raise UserError(f"the master refuses to pair: {sanitised_line(result.message)}")
        if not self._slow or not hmac.compare_digest(result.proof, _proof(self._slow, "master")):
            raise UserError(
                "this master says that it was given the code, and cannot prove it: somebody may be between the two "
                f"machines; {BY_TOKEN}"
            )
        return self._master_key


def normal_code(text: str) -> str:
    """Returns the code's eight characters. Raises UserError for another text."""
    letters = "".join(one for one in text.upper() if one not in "- ").translate(str.maketrans("018", "OIB"))
    if len(letters) != 8 or any(one not in "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" for one in letters):
        raise UserError("not a code: it looks like ABCD-EF23, on the worker's screen")
    return letters


def _transcript(master_key: str, worker_key: str, master_nonce: bytes, worker_nonce: bytes) -> bytes:
    parts = (b"tpiedge pairing 1\0", master_key.encode(), worker_key.encode(), master_nonce, worker_nonce)
    return hashlib.sha256(b"".join(parts)).digest()


def _slow_key(secret: str, transcript: bytes) -> bytes:
    """Derives a key. Takes 16 MiB and 50 ms."""
    return hashlib.scrypt(secret.encode(), salt=transcript, n=1 << 14, r=8, p=1, maxmem=64 << 20, dklen=32)


def _proof(key: bytes, role: str) -> bytes:
    return hmac.digest(key, role.encode(), "sha256")
