"""What the master answers to a worker that wants to belong to the cluster: a machine without sockets or files.

A key becomes a member only by an Enrol with the secret of a living token; a member needs no secret. A revoked key stays
out, and so does who speaks another protocol or would compute other numbers, member or not: no secret is spent. Wrong
secrets are limited per key and altogether; neither members nor who brings a good one ever feel that.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from tpiedge.errors import TpiedgeError
from tpiedge.joining.identity import fingerprint
from tpiedge.joining.members import NEW_KEY, KnownWorker, MemberTable, Redemption
from tpiedge.joining.pairing import Limiter
from tpiedge.sanitise import sanitised_name
from tpiedge.wire.join import Enrol, Enrolled, RefusalKind, Refused
from tpiedge.wire.messages import PROTOCOL, Message

_WRONG_PER_KEY, _WRONG_IN_ALL, _WINDOW_S = 3, 60, 60.0

_WORDS: dict[Redemption, tuple[RefusalKind, str]] = {
    "unknown": ("secret", "the master does not know this token: it was revoked, or another cluster's"),
    "expired": ("expired", "this token has expired"),
    "used": ("used", "this token was used before"),
}
_NEW_TOKEN = "get a new one with 'tpiedge token create' on the master's computer"


@dataclass(frozen=True, slots=True)
class Numerics:
    """What two machines must have in common to compute the same numbers: the processor may differ, and so may the
    kernels. `torch`: its release without what a build adds ("2.9.1", not "2.9.1+cpu"), "" where there is none.
    `numbers`: how they lie in memory. Python itself needs floats of IEEE 754."""

    torch: str
    numbers: str


def own_numerics() -> Numerics:
    """The numerics of this installation as it is on the disk now. Imports no torch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return Numerics(version.partition("+")[0], f"{sys.byteorder}-endian IEEE 754")


@dataclass(frozen=True, slots=True)
class EnrolmentReply:
    """What to do now: send `answer`; where `cut`, end the peer's place and its connection. `note` is for the log."""

    answer: Enrolled | Refused
    cut: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A newcomer for whom its token decides, and a disk: have the journal admit `member` if the `secret` is good, then
    give `Enrolment.decided` what came of it."""

    member: KnownWorker
    secret: str = field(repr=False)
    welcome: EnrolmentReply


class Enrolment:
    """Times: `now` seconds of any clock, `wall` since 1970."""

    def __init__(
        self,
        cluster: str,
        version: str,
        numerics: Numerics,
        members: Callable[[], MemberTable],
        is_good: Callable[[str, str], bool],
    ) -> None:
        """`is_good(secret, peer)`: whether a living token has the secret, without waiting for the disk."""
        self._cluster = cluster
        self._version = version
        self._numerics = numerics
        self._members = members
        self._is_good = is_good
        self._wrong = Limiter(_WRONG_PER_KEY, _WRONG_IN_ALL, _WINDOW_S)

    def judge(
        self, peer: str, key: str, message: Message, now: float, wall: float
    ) -> EnrolmentReply | Candidate:
        """The reply to `message` of the guest or member `peer`, whose connection proves that it has `key`."""
        table = self._members()
        if table.is_revoked(key):
            words = f"the master has revoked the key of this worker ({fingerprint(key)}): {NEW_KEY}"
            return self._refuse("revoked", words)
        if not isinstance(message, Enrol):
            return self._refuse(
                "unexpected", "this worker has not joined yet: its first message must be Enrol"
            )
        own = self._numerics
        if message.protocol != PROTOCOL:
            where = "the worker" if message.protocol < PROTOCOL else "the master's computer"
            return self._refuse(
                "protocol",
                f"the worker has tpiedge {sanitised_name(message.version)} (protocol {message.protocol}), the master "
                f"{self._version} (protocol {PROTOCOL}): update tpiedge on {where}",
            )
        if message.numbers != own.numbers:
            return self._refuse(
                "numbers",
                f"the worker's numbers are {sanitised_name(message.numbers)}, the master's {own.numbers}: neither can "
                "read the other's; leave this computer out, or run the master on one of its kind",
            )
        if message.torch != own.torch:
            there = f"type 'pip install torch=={own.torch}' on the worker's computer"
            return self._refuse(
                "torch",
                f"the worker has {_torch(message.torch)}, the master {_torch(own.torch)}: two releases may round "
                f"differently; {there if own.torch else 'install it there'}, and start tpiedge there again",
            )
        if table.member(key) is not None:
            return self._accept(peer, message)
        if not message.secret:
            return self._refuse(
                "denied", f"the master does not know this worker: {_NEW_TOKEN} and join with it"
            )
        if self._wrong.is_full(key, now) and not self._is_good(message.secret, peer):
            return self._refuse("limited", "too many wrong tokens: try again in a minute")
        member = KnownWorker(key, sanitised_name(message.name), wall, "token")
        return Candidate(member, message.secret, self._accept(peer, message))

    def decided(self, candidate: Candidate, outcome: Redemption | TpiedgeError, now: float) -> EnrolmentReply:
        """The reply once its token was judged and the journal has it, or could not: an error of its file."""
        if isinstance(outcome, TpiedgeError):
            return self._refuse("denied", f"the master cannot let this worker in: {outcome}")
        if outcome == "ok":
            return candidate.welcome
        self._wrong.count(candidate.member.key, now)
        kind, words = _WORDS[outcome]
        return self._refuse(kind, f"{words}: {_NEW_TOKEN}")

    def busy(self) -> EnrolmentReply:
        """The reply to a candidate where too many others wait for the disk."""
        return self._refuse("limited", "too many workers join at once: try again in a minute")

    def _accept(self, peer: str, message: Enrol) -> EnrolmentReply:
        note = ""
        if message.version != self._version:
            note = (
                f"{peer} ({sanitised_name(message.name)}) runs tpiedge {sanitised_name(message.version)}, this master "
                f"{self._version}; both speak protocol {PROTOCOL}, so they work together"
            )
        return EnrolmentReply(Enrolled(peer, self._cluster, PROTOCOL, self._version), note=note)

    def _refuse(self, kind: RefusalKind, words: str) -> EnrolmentReply:
        return EnrolmentReply(Refused(kind, words), cut=True, note=f"refused: {words}")


def _torch(release: str) -> str:
    return f"torch {sanitised_name(release)}" if release else "no torch"
