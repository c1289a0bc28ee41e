"""Who gets in over real connections: guests, tokens, codes, revocation, and what is said where it fails."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from tests.contract.gate import MASTER, Gate
from tests.patience import Meanwhile
from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import PAIRING_OFFSET, Address, parse_address
from tpiedge.joining import connecting
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.front_door import FrontDoor
from tpiedge.joining.identity import peer_name
from tpiedge.joining.pairing import MAX_PER_SOURCE
from tpiedge.joining.pairing_link import PairingHub, introduction_keys, pair
from tpiedge.joining.token_store import TokenStore
from tpiedge.joining.tokens import CLOCK_SET_S
from tpiedge.transport.admission import GuestPolicy
from tpiedge.transport.endpoint import Unreachable
from tpiedge.transport.framing import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.control import Shutdown
from tpiedge.wire.join import Enrol, Refused
from tpiedge.wire.messages import PROTOCOL

WAIT_S = 20.0
WORKER, OTHER = (CurveKeys.generate() for _ in range(2))
NAME = peer_name(WORKER.public)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers late, beside other tests, is asked for long enough."""
    monkeypatch.setattr(connecting, "_PROBE_S", WAIT_S)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path)) as made:
        yield made


def link(gate: Gate, keys: CurveKeys = WORKER) -> ZmqSpoke:
    return open_link(gate.address, MASTER.public, keys, peer_name(keys.public), timeout_s=WAIT_S)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_token_lets_a_worker_in_once_and_for_good(gate: Gate) -> None:
    secret = gate.token()
    with link(gate) as spoke:
        assert enrol(spoke, "pi", secret).name == NAME
        spoke.send(Shutdown(7))
        eventually(lambda: gate.heard)
        assert gate.heard == [(NAME, Shutdown(7))]
        assert gate.hub.admission.guests == ()
    with link(gate) as again:
        assert enrol(again, "pi").name == NAME
    with link(gate, OTHER) as other, pytest.raises(UserError, match=r"used before.*token create"):
        enrol(other, "pi2", secret)
    assert gate.door.journal.table.member(WORKER.public) is not None
    assert gate.door.journal.table.member(OTHER.public) is None


@pytest.mark.fault("P13", "a token made before the clock is set is good when it is")
def test_a_token_lives_from_the_moment_at_which_the_master_s_clock_is_set(tmp_path: Path) -> None:
    now = 60.0  # a board without a battery
    tokens = TokenStore(tmp_path, lambda: now)
    with closing(ZmqHub("tcp://127.0.0.1:*", MASTER, "master", {}, plane=CONTROL)) as hub:
        door = FrontDoor(hub, MASTER.public, tmp_path, wall_clock=lambda: now)
        _, secret = tokens.create(expires_s=3600.0, uses=None)
        door.tick()
        now = CLOCK_SET_S + 1000.0
        door.tick()
        door.close()
        now += 3599.0
        assert tokens.judge(secret, {})[0] == "ok"
        now += 1.0
        assert tokens.judge(secret, {})[0] == "expired"


def test_a_new_master_process_knows_its_workers(tmp_path: Path) -> None:
    with closing(Gate(tmp_path)) as first, link(first) as spoke:
        enrol(spoke, "pi", first.token())
    with closing(Gate(tmp_path)) as second, link(second) as spoke:
        assert enrol(spoke, "pi").name == NAME


def test_a_guest_has_no_effect(gate: Gate) -> None:
    with link(gate) as spoke:
        spoke.send(Shutdown(1))
        eventually(lambda: gate.door.enrolment.refusals["unexpected"])
        assert gate.heard == []
        answer = spoke.recv(WAIT_S)
        assert answer is not None
        assert isinstance(answer.message, Refused)


def test_a_wrong_secret_is_refused_and_not_repeated(gate: Gate) -> None:
    with link(gate) as spoke, pytest.raises(UserError, match="does not know this token") as caught:
        enrol(spoke, "pi", "s3cret")
    assert "s3cret" not in str(caught.value)


def test_another_protocol_is_told_both_versions(gate: Gate) -> None:
    with link(gate) as spoke:
        spoke.send(Enrol(PROTOCOL + 1, "9.9", "pi", gate.token(), "n", "", ""))
        answer = spoke.recv(WAIT_S)
        assert answer is not None
        assert isinstance(answer.message, Refused)
        assert "9.9 (protocol" in answer.message.message
        assert "update tpiedge on the master's computer" in answer.message.message
    assert gate.tokens.list()[0][1] == "ok"


def test_a_revoked_worker_is_told_dropped_and_cut_off(gate: Gate) -> None:
    with link(gate) as spoke, link(gate, OTHER) as other:
        enrol(spoke, "pi", gate.token())
        enrol(other, "pi2", gate.token())
        gate.door.revoke(NAME)
        answer = spoke.recv(WAIT_S)
        assert answer is not None
        assert isinstance(answer.message, Refused)
        assert answer.message.kind == "revoked"
        spoke.send(Shutdown(1))
        monitor = spoke.monitor
        eventually(lambda: monitor.poll() is LinkState.REFUSED)
        other.send(Shutdown(2))
        eventually(lambda: gate.heard)
        assert gate.heard == [(peer_name(OTHER.public), Shutdown(2))]
        with pytest.raises(PeerError, match="does not let this worker in"):
            link(gate)


def test_a_wrong_master_key_is_said(gate: Gate) -> None:
    meanwhile = Meanwhile()
    with pytest.raises(UserError, match=r"127\.0\.0\.1:\d+ is a tpiedge master with another key.*new token"):
        open_link(gate.address, OTHER.public, WORKER, NAME)
    assert meanwhile.spent_s < 3.5 * meanwhile.patience()


def test_nothing_there_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(PeerError, match=r"nothing answers at .* is the master running"):
            open_link(address, MASTER.public, WORKER, NAME, timeout_s=0.5)
        typed = Address(address.host, address.port - PAIRING_OFFSET)
        with pytest.raises(PeerError, match=f"nothing answers at {typed}, pairing port {address.port}"):
            pair(typed, WORKER, "pi", print)


def test_a_name_with_several_addresses_is_the_one_where_the_master_is(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with another network, which is down, and somebody else's: in whatever order the resolver has them."""
    name = Address("kitchen.test", gate.address.port)

    def tried(*found: Address, timeout_s: float = 1.0) -> ZmqSpoke:
        keys = CurveKeys.generate()  # a guest's name is taken for a moment after it has left
        monkeypatch.setattr(connecting, "resolve_all", lambda _named: found)
        return open_link(name, MASTER.public, keys, peer_name(keys.public), timeout_s)

    with socket.socket() as nobody, socket.create_server(("127.0.0.1", 0)) as server:
        nobody.bind(("127.0.0.1", 0))
        dead, other = (Address("127.0.0.1", one.getsockname()[1]) for one in (nobody, server))
        strange = threading.Thread(target=_answer_all, args=(server, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        strange.start()
        try:
            for found in ([dead, gate.address], [other, dead, gate.address]):
                with tried(*found, timeout_s=3.0) as spoke:
                    assert spoke.address == gate.address.zmq
            with pytest.raises(PeerError, match=r"nothing answers at kitchen\.test:"):
                tried(other, dead)
            with pytest.raises(UserError, match=r"what answers at kitchen\.test:\d+ is not a tpiedge master"):
                tried(other, other)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            strange.join()


def test_an_unknown_host_is_said_before_trying() -> None:
    with pytest.raises(UserError, match=r"the host no-such-host\.invalid is not known"):
        open_link(Address("no-such-host.invalid", 7070), MASTER.public, WORKER, NAME)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_another_service_is_said(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_all, args=(server, answer))
        thread.start()
        try:
            with pytest.raises(UserError, match="is not a tpiedge master: check the port"):
                open_link(
                    Address("127.0.0.1", server.getsockname()[1]), MASTER.public, WORKER, NAME, timeout_s=1.0
                )
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer_all(server: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(1.0)
            try:
                connection.recv(64)
                connection.sendall(answer)
            except OSError:
                pass


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        os.urandom(400),
    ],
)
@pytest.mark.fault("W1", "cut off, while others join")
def test_junk_is_cut_off_while_others_are_served(gate: Gate, junk: bytes) -> None:
    with link(gate) as spoke, socket.create_connection((gate.address.host, gate.address.port)) as raw:
        enrol(spoke, "pi", gate.token())
        raw.sendall(junk)
        raw.settimeout(WAIT_S)
        try:
            while raw.recv(4096):
                pass
        except ConnectionResetError:
            pass
        assert enrol(spoke, "pi").name == NAME
        assert gate.hub.admission.guests == ()


def test_a_peer_without_curve_is_no_guest(gate: Gate) -> None:
    with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as plain, link(gate) as spoke:
        plain.linger = 0
        plain.connect(gate.hub.address)
        plain.send(b"hello")
        enrol(spoke, "pi", gate.token())
        assert gate.hub.admission.guests == ()
        assert gate.heard == []


def test_a_guest_who_stays_too_long_is_dropped() -> None:
    policy = GuestPolicy(peer_name, stay_s=0.0)
    with ZmqHub("tcp://127.0.0.1:*", MASTER, "master", {}, plane=CONTROL, guests=policy) as hub:
        address = parse_address(hub.address.removeprefix("tcp://"))
        with open_link(address, MASTER.public, WORKER, NAME) as spoke:
            hub.recv(0.05)
            assert hub.admission.overstayed() == (NAME,)
            hub.disconnect(NAME)
            spoke.send(Shutdown(1))
            assert hub.recv(0.3) is None
            with pytest.raises(Unreachable):
                hub.send(Shutdown(1), to=NAME, timeout_s=0.0)


@pytest.fixture
def pairing(gate: Gate) -> Iterator[tuple[PairingHub, Address]]:
    with closing(PairingHub("tcp://127.0.0.1:*", MASTER.public, gate.door.admit)) as hub:
        port = int(hub.address.rpartition(":")[2])
        yield hub, Address("127.0.0.1", port - 3)


class Visit:
    """A worker that pairs, in a thread."""

    def __init__(self, address: Address, keys: CurveKeys = WORKER) -> None:
        self.code = ""
        self.shown = threading.Event()
        self.result: object = None
        self._thread = threading.Thread(target=self._run, args=(address, keys))
        self._thread.start()

    def end(self) -> object:
        self._thread.join(WAIT_S)
        return self.result

    def _run(self, address: Address, keys: CurveKeys) -> None:
        try:
            self.result = pair(address, keys, "pi", self._show, timeout_s=WAIT_S)
        except (UserError, PeerError) as error:
            self.result = error

    def _show(self, code: str) -> None:
        self.code = code
        self.shown.set()


def test_a_typed_code_lets_a_worker_in(gate: Gate, pairing: tuple[PairingHub, Address]) -> None:
    hub, address = pairing
    visit = Visit(address)
    assert visit.shown.wait(WAIT_S)
    eventually(hub.pending)
    assert hub.pending()[0].host == "pi"
    with pytest.raises(UserError, match="no waiting worker"):
        hub.approve("AAAA-AAAA")
    assert hub.approve(visit.code.lower()).name == NAME
    assert visit.end() == MASTER.public
    with link(gate) as spoke:
        assert enrol(spoke, "pi").name == NAME


def test_a_master_that_swaps_its_key_is_found_out(gate: Gate, pairing: tuple[PairingHub, Address]) -> None:
    """The code is typed into the real master; the worker visited another one that pretends to have been given it."""
    from tpiedge.joining.pairing import PairingMaster
    from tpiedge.wire.join import Knock, Reveal, Verdict

    middle_side = PairingMaster(OTHER.public)
    policy = GuestPolicy(peer_name)
    keys = introduction_keys()
    with ZmqHub("tcp://127.0.0.1:*", keys, "introduction", {}, plane=CONTROL, guests=policy) as middle:
        visit = Visit(Address("127.0.0.1", int(middle.address.rpartition(":")[2]) - 3))
        knock = middle.recv(WAIT_S)
        assert knock is not None
        assert isinstance(knock.message, Knock)
        challenge = middle_side.knock(NAME, WORKER.public, "", knock.message, 0.0)
        middle.send(challenge, to=NAME)
        reveal = middle.recv(WAIT_S)
        assert reveal is not None
        assert isinstance(reveal.message, Reveal)
        middle.send(Verdict(reveal.message.proof, ""), to=NAME)
        assert visit.shown.wait(WAIT_S)
        with pytest.raises(UserError, match="no waiting worker"):
            pairing[0].approve(visit.code)
        result = visit.end()
    assert isinstance(result, UserError)
    assert "cannot prove it" in str(result)


def test_one_source_cannot_fill_the_queue(pairing: tuple[PairingHub, Address]) -> None:
    hub, address = pairing
    visits = [Visit(address, CurveKeys.generate()) for _ in range(MAX_PER_SOURCE + 1)]
    eventually(lambda: len(hub.pending()) == MAX_PER_SOURCE and any(visit.result for visit in visits))
    refused = next(visit.result for visit in visits if visit.result)
    assert "too many workers wait" in str(refused)
    for visit in visits:
        if not visit.result:
            assert visit.shown.wait(WAIT_S)
            hub.approve(visit.code)
    assert [visit.end() for visit in visits].count(MASTER.public) == MAX_PER_SOURCE


def test_a_master_that_goes_away_is_noticed(gate: Gate) -> None:
    hub = PairingHub("tcp://127.0.0.1:*", MASTER.public, gate.door.admit)
    visit = Visit(Address("127.0.0.1", int(hub.address.rpartition(":")[2]) - 3))
    assert visit.shown.wait(WAIT_S)
    hub.close()
    assert "went away" in str(visit.end())
