"""Decides whether a worker may join, and words the refusal that it hears. No sockets, no files.

Without pairing, only an Enrol with a valid token's secret makes a key a member. Members need no secret. A worker with a
revoked key is refused. A worker is also refused if its protocol, number format or torch differs from the master's. A
refused worker spends no token.
"""

import logging
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from tpiedge import __version__
from tpiedge.errors import TpiedgeError
from tpiedge.joining.identity import fingerprint
from tpiedge.joining.members import NEW_KEY, MemberTable, Redemption
from tpiedge.sanitise import sanitised_line, sanitised_name
from tpiedge.wire.codec import PROTOCOL
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Enrol, Enrolled, RefusalKind, Refused

_WORDS: dict[Redemption, tuple[RefusalKind, str]] = {
    "unknown": (
        "secret",
        "the master does not know this token: revoked, used up, of another cluster, or of a master that has stopped",
    ),
    "expired": ("expired", "this token has expired"),
    "used": ("used", "this token was used before"),
}
_NEW_TOKEN = "get a new one with 'tpiedge token create' on the master's computer"

_log = logging.getLogger(__name__)


def introduction(host: str, secret: str = "") -> Enrol:
    """Describes this machine, without importing torch. Machines with equal `torch` and `numbers` compute the same
    bits."""
    try:
        torch = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        torch = ""
    nonce, numbers = secrets.token_hex(8), f"{sys.byteorder}-endian IEEE 754"
    return Enrol(PROTOCOL, __version__, host[:64], secret, nonce, torch, numbers)


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The master's rules. `own` is the master's Enrol. `quick_check` checks a token without locks or writes."""

    cluster: str
    own: Enrol
    members: Callable[[], MemberTable]
    quick_check: Callable[[str], Redemption]

    def check(self, peer: str, key: str, message: Message) -> Enrolled | Refused | Enrol:
        """Returns the answer to `peer`. Returns `message` itself if its token seems valid. The caller then redeems this
        token and calls `answer`."""
        table = self.members()
        if table.is_revoked(key):
            words = f"the master has revoked the key of this worker ({fingerprint(key)}): {NEW_KEY}"
            return Refused("revoked", words)
        if not isinstance(message, Enrol):
            return Refused("unexpected", "this worker has not joined yet: its first message must be Enrol")
        own = self.own
        if message.protocol != PROTOCOL:
            where = "the worker" if message.protocol < PROTOCOL else "the master's computer"
            return Refused(
                "protocol",
                f"the worker has tpiedge {sanitised_name(message.version)} (protocol {message.protocol}), the master "
                f"{own.version} (protocol {PROTOCOL}): update tpiedge on {where}",
            )
        if message.numbers != own.numbers:
            return Refused(
                "numbers",
                f"the worker's numbers are {sanitised_name(message.numbers)}, the master's {own.numbers}: they cannot "
                "work together; leave this computer out, or run the master on one of its kind",
            )
        if message.torch != own.torch:
            there = f"type 'pip install torch=={own.torch}' on the worker's computer"
            return Refused(
                "torch",
                f"the worker has {_torch(message.torch)}, the master {_torch(own.torch)}: two releases may round "
                f"differently; {there if own.torch else 'install it there'}, and start tpiedge there again",
            )
        if table.member(key) is not None:
            return self.answer(peer, message, "ok")
        if not message.secret:
            return Refused("denied", f"the master does not know this worker: {_NEW_TOKEN} and join with it")
        outcome = self.quick_check(message.secret)
        return message if outcome == "ok" else self.answer(peer, message, outcome)

    def answer(self, peer: str, message: Enrol, outcome: Redemption | TpiedgeError) -> Enrolled | Refused:
        if isinstance(outcome, TpiedgeError):
            return Refused("denied", f"the master cannot let this worker in: {sanitised_line(outcome)}")
        if outcome != "ok":
            kind, words = _WORDS[outcome]
            return Refused(kind, f"{words}: {_NEW_TOKEN}")
        own = self.own.version
        if message.version != own:
            name, version = sanitised_name(message.name), sanitised_name(message.version)
            words = "%s (%s) runs tpiedge %s, this master %s; both speak protocol %d, so they work together"
            _log.info(words, peer, name, version, own, PROTOCOL)
        return Enrolled(peer, self.cluster, PROTOCOL, own)


def _torch(release: str) -> str:
    return f"torch {sanitised_name(release)}" if release else "no torch"
