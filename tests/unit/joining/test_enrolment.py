from importlib import metadata

import pytest

from tpiedge.errors import ProtocolError, UserError
from tpiedge.joining.enrolment import Enrolment, introduction
from tpiedge.joining.identity import peer_name
from tpiedge.joining.members import KnownWorker, MemberTable, Redemption
from tpiedge.joining.pairing import (
    MAX_PENDING,
    MAX_PER_SOURCE,
    PAIRING_S,
    PairingMaster,
    PairingWorker,
    normal_code,
)
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.codec import PROTOCOL
from tpiedge.wire.control import Shutdown
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Challenge, Enrol, Enrolled, PairingRequest, PairingResult, Refused, Reveal

MASTER, KEY, OTHER = (CurveKeys.generate().public for _ in range(3))
NAME = peer_name(KEY)
OWN = Enrol(PROTOCOL, "0.1.0", "master", "", "n", "2.9.1", "little-endian IEEE 754")


class Enrolling:
    """An enrolment with tokens given by a dictionary, and what was spent."""

    def __init__(self, tokens: dict[str, Redemption], table: MemberTable | None = None) -> None:
        self.table = table or MemberTable()
        self.spent: list[str] = []
        self._tokens = tokens
        self.machine = Enrolment("c1", OWN, lambda: self.table, lambda secret: tokens.get(secret, "unknown"))

    def reply(self, message: Message, key: str = KEY) -> Enrolled | Refused:
        reply = self.machine.check(peer_name(key), key, message)
        if not isinstance(reply, Enrol):
            return reply
        self.spent.append(reply.secret)
        outcome = self._tokens.get(reply.secret, "unknown")
        if outcome == "ok":
            self.table = self.table.admit(KnownWorker(key, reply.name, 1e9, "token"))
        return self.machine.answer(peer_name(key), reply, outcome)

    def say(self, message: Message, key: str = KEY) -> str:
        reply = self.reply(message, key)
        return "ok" if isinstance(reply, Enrolled) else reply.kind


def enrol(secret="", protocol=PROTOCOL, version="0.1.0", torch=OWN.torch, numbers=OWN.numbers):
    return Enrol(protocol, version, "pi", secret, "n", torch, numbers)


@pytest.mark.fault("W9", "another protocol is refused before it joins")
@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (enrol("good"), "ok"),
        (enrol("old"), "expired"),
        (enrol("gone"), "used"),
        (enrol("x"), "secret"),
        (enrol(""), "denied"),
        (enrol("good", PROTOCOL + 1), "protocol"),
        (enrol("good", PROTOCOL - 1), "protocol"),
        (enrol("good", torch="2.9.0"), "torch"),
        (enrol("good", torch=""), "torch"),
        (enrol("good", numbers="big-endian IEEE 754"), "numbers"),
        (enrol("good", PROTOCOL + 1, torch="3.0", numbers="x"), "protocol"),
        (Shutdown(1), "unexpected"),
    ],
)
def test_newcomer_needs_a_valid_token_and_matching_versions(message: Message, answer: str) -> None:
    enrolling = Enrolling({"good": "ok", "old": "expired", "gone": "used"})
    assert enrolling.say(message) == answer
    assert (enrolling.table.member(KEY) is not None) == (answer == "ok")


def test_member_needs_and_spends_no_token() -> None:
    enrolling = Enrolling({"good": "ok"}, MemberTable().admit(KnownWorker(KEY, "pi", 0.0, "token")))
    assert enrolling.say(enrol()) == "ok"
    assert enrolling.say(enrol("good")) == "ok"
    assert enrolling.spent == []


def test_revoked_key_is_refused_and_spends_no_token() -> None:
    table, _ = MemberTable().admit(KnownWorker(KEY, "pi", 0.0, "token")).revoke(NAME, 1.0)
    enrolling = Enrolling({"good": "ok"}, table)
    assert enrolling.say(enrol("good")) == "revoked"
    assert enrolling.say(enrol()) == "revoked"
    assert enrolling.spent == []


def test_token_outcome_on_disk_overrides_the_first_check() -> None:
    machine, message = Enrolment("c1", OWN, MemberTable, lambda _: "ok"), enrol("good")
    assert machine.check(NAME, KEY, message) is message
    refused = machine.answer(NAME, message, "used")
    assert isinstance(refused, Refused)
    assert refused.kind == "used"


PIP = "'pip install torch==2.9.1' on the worker's"


@pytest.mark.fault("W9", "another protocol or number format is refused, with both and what to do")
@pytest.mark.parametrize("known", [False, True], ids=["newcomer", "member"])
@pytest.mark.parametrize(
    ("message", "words"),
    [
        (enrol("good", PROTOCOL + 1, "0.2.0"), (f"0.2.0 (protocol {PROTOCOL + 1})", "tpiedge on the master")),
        (enrol("good", PROTOCOL - 1, "0.0.9"), (f"0.0.9 (protocol {PROTOCOL - 1})", "tpiedge on the worker")),
        (enrol("good", torch="2.10.0"), ("worker has torch 2.10.0, the master torch 2.9.1", PIP)),
        (enrol("good", torch=""), ("worker has no torch, the master torch 2.9.1", PIP)),
        (enrol("good", numbers="big-endian IEEE 754"),
         ("numbers are big-endian IEEE 754, the master's little-endian IEEE 754", "leave this computer out")),
    ],
    ids=["newer", "older", "torch", "no torch", "numbers"],
)  # fmt: skip
def test_version_mismatch_error_names_both_sides_and_the_fix(message, words, known):
    table = MemberTable().admit(KnownWorker(KEY, "pi", 0.0, "token")) if known else None
    enrolling = Enrolling({"good": "ok"}, table)
    reply = enrolling.reply(message)
    assert isinstance(reply, Refused)
    assert all(word in reply.message for word in words), reply.message
    assert reply.kind != "protocol" or f"the master 0.1.0 (protocol {PROTOCOL})" in reply.message
    assert enrolling.spent == []
    assert enrolling.say(enrol("good")) == "ok"


def arrive(pairing, worker, key=KEY, now=0.0, address="a"):
    challenge = pairing.request(peer_name(key), key, address, worker.request, now)
    assert isinstance(challenge, Challenge)
    assert pairing.reveal(peer_name(key), worker.prove(challenge), now) is None


def test_pairing_code_authenticates_both_sides() -> None:
    pairing, worker, other = PairingMaster(MASTER), PairingWorker(KEY, "pi"), PairingWorker(OTHER, "pi2")
    arrive(pairing, other, OTHER)
    arrive(pairing, worker)
    assert [one.host for one in pairing.pending(0.0)] == ["pi2", "pi"]
    approved, result = pairing.approve(worker.code, 1.0)
    assert (approved.name, approved.key, approved.host) == (NAME, KEY, "pi")
    assert worker.verify(result) == MASTER
    with pytest.raises(UserError, match="no waiting worker"):
        pairing.approve(worker.code, 1.0)


@pytest.mark.fault("W6", "pairing by code fails for both sides")
def test_pairing_fails_for_a_man_in_the_middle() -> None:
    pairing, worker = PairingMaster(MASTER), PairingWorker(KEY, "pi")
    challenge = pairing.request("w-m", OTHER, "m", worker.request, 0.0)
    assert isinstance(challenge, Challenge)
    reveal = worker.prove(Challenge(OTHER, challenge.nonce))
    assert pairing.reveal("w-m", reveal, 0.0) is None
    with pytest.raises(UserError, match="may be intercepted"):
        pairing.approve(worker.code, 1.0)
    for proof in (reveal.proof, bytes(32)):
        with pytest.raises(UserError, match="cannot prove it"):
            worker.verify(PairingResult(proof, ""))


def test_a_worker_answers_one_challenge() -> None:
    worker = PairingWorker(KEY, "pi")
    worker.prove(Challenge(MASTER, bytes(16)))
    with pytest.raises(ProtocolError):
        worker.prove(Challenge(OTHER, bytes(16)))


def test_pending_pairings_expire_and_are_limited() -> None:
    pairing = PairingMaster(MASTER)
    workers = [CurveKeys.generate().public for _ in range(MAX_PENDING + 1)]
    for number, key in enumerate(workers[:MAX_PENDING]):
        arrive(pairing, PairingWorker(key, "pi"), key, address=f"a{number // MAX_PER_SOURCE}")
    late = PairingWorker(workers[-1], "pi")
    assert isinstance(pairing.request("w-late", workers[-1], "z", late.request, 1.0), PairingResult)
    assert len(pairing.pending(PAIRING_S - 1)) == MAX_PENDING
    assert pairing.pending(PAIRING_S) == ()
    arrive(pairing, late, workers[-1], PAIRING_S)


def test_out_of_order_or_malformed_pairing_is_refused() -> None:
    pairing = PairingMaster(MASTER)
    assert isinstance(pairing.reveal(NAME, Reveal(bytes(32)), 0.0), PairingResult)
    short = pairing.request(NAME, KEY, "a", PairingRequest(PROTOCOL, "1", "pi", b"short"), 0.0)
    other = pairing.request(NAME, KEY, "a", PairingRequest(PROTOCOL + 1, "9", "pi", bytes(16)), 0.0)
    assert isinstance(short, PairingResult)
    assert isinstance(other, PairingResult)
    assert "9 (protocol" in other.message
    assert pairing.pending(0.0) == ()


def test_wrong_pairing_codes_are_rate_limited() -> None:
    pairing = PairingMaster(MASTER)
    for _ in range(10):
        with pytest.raises(UserError, match="no waiting worker"):
            pairing.approve("AAAA-AAAA", 0.0)
    with pytest.raises(UserError, match="too many wrong codes"):
        pairing.approve("AAAA-AAAA", 1.0)


@pytest.mark.parametrize("text", ["abcd-ef23", "ABCD EF23", "abcdef23 "])
def test_pairing_code_is_normalised(text: str) -> None:
    assert normal_code(text) == "ABCDEF23"
    assert normal_code("0bcd-1f28") == "OBCDIF2B"


@pytest.mark.parametrize("text", ["", "ABCD", "ABCD-EF2?", "ABCD-EF234", "\u0661BCD-EF23"])
def test_invalid_pairing_code_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a code"):
        normal_code(text)


@pytest.mark.parametrize(
    ("installed", "said"),
    [("2.9.1+cpu", "2.9.1"), ("2.9.1", "2.9.1"), ("2.10.0.dev20260101+cu130", "2.10.0.dev20260101")],
)
def test_torch_build_suffix_is_ignored(tmp_path, monkeypatch, installed, said):
    folder = tmp_path / f"torch-{installed}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert introduction("pi").torch == said


def test_missing_torch_is_reported_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert introduction("pi").torch == ""
