import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.master_hub import MASTER, MasterHub
from tests.contract.raw_peers import wait_until
from tests.contract.test_endpoint import receive
from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import PAIRING_OFFSET, Address
from tpiedge.host.private_file import replace_private
from tpiedge.joining import connecting
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.members import MEMBERS_FILE
from tpiedge.joining.pairing_link import PairingHub, pair
from tpiedge.joining.registrar import Registrar
from tpiedge.joining.tokens import CLOCK_SET_S, TokenStore
from tpiedge.transport.endpoint import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.control import Shutdown

WAIT_S = 20.0
WORKER, OTHER = (CurveKeys.generate() for _ in range(2))
NAME = peer_name(WORKER.public)


@pytest.fixture(autouse=True)
def _long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_PROBE_S", WAIT_S)


def link(master: MasterHub, keys: CurveKeys = WORKER) -> ZmqSpoke:
    return open_link(master.address, MASTER.public, keys, peer_name(keys.public), timeout_s=WAIT_S)


def test_token_admits_one_worker_permanently(master: MasterHub) -> None:
    secret = master.token()
    with link(master) as spoke:
        assert enrol(spoke, "pi", secret).name == NAME
        spoke.send(Shutdown(7))
        wait_until(lambda: master.heard)
        assert master.heard == [(NAME, Shutdown(7))]
        assert master.hub.admission.unknown_peers == ()
    with link(master) as again:
        assert enrol(again, "pi").name == NAME
    with link(master, OTHER) as other, pytest.raises(UserError, match=r"used before.*token create"):
        enrol(other, "pi2", secret)
    assert master.registrar.journal.table.member(WORKER.public) is not None
    assert master.registrar.journal.table.member(OTHER.public) is None


@pytest.mark.fault("P13", "a token made before the clock is set is good when it is")
def test_token_lifetime_starts_when_the_master_clock_is_set(tmp_path: Path) -> None:
    now = 60.0  # a board without a battery
    tokens = TokenStore(tmp_path, lambda: now)
    with closing(ZmqHub("tcp://127.0.0.1:*", MASTER, "master", {}, plane=CONTROL)) as hub:
        registrar = Registrar(hub, MASTER.public, tmp_path, wall_clock=lambda: now)
        _, secret = tokens.create(expires_s=3600.0, uses=None)
        registrar.tick()
        now = CLOCK_SET_S + 1000.0
        registrar.tick()
        registrar.close()
        now += 3599.0
        assert tokens.check(secret, {})[0] == "ok"
        now += 1.0
        assert tokens.check(secret, {})[0] == "expired"


def test_revoked_key_also_listed_as_member_stays_out(tmp_path: Path) -> None:
    lists: dict[str, object] = {
        "members": [{"key": WORKER.public, "host": "pi", "joined": 1.0, "how": "token"}],
        "revoked": [{"key": WORKER.public, "host": "pi", "when": 2.0}],
    }
    replace_private(tmp_path / MEMBERS_FILE, lists)
    with closing(MasterHub(tmp_path)) as master:
        assert master.hub.admission.authenticate(WORKER.public) is None


def test_revoked_worker_is_notified_and_disconnected(master: MasterHub) -> None:
    with link(master) as spoke, link(master, OTHER) as other:
        enrol(spoke, "pi", master.token())
        enrol(other, "pi2", master.token())
        master.registrar.revoke(NAME)
        assert receive(spoke).message.kind == "revoked"
        spoke.send(Shutdown(1))
        monitor = spoke.monitor
        wait_until(lambda: monitor.poll() is LinkState.REFUSED)
        other.send(Shutdown(2))
        wait_until(lambda: master.heard)
        assert master.heard == [(peer_name(OTHER.public), Shutdown(2))]
        with pytest.raises(PeerError, match="does not let this worker in"):
            link(master)


def test_unreachable_master_error_names_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(PeerError, match=r"nothing answers at .* is the master running"):
            open_link(address, MASTER.public, WORKER, NAME, timeout_s=0.5)
        typed = Address(address.host, address.port - PAIRING_OFFSET)
        with pytest.raises(PeerError, match=f"nothing answers at {typed}, pairing port {address.port}"):
            pair(typed, WORKER, "pi", print)


@pytest.fixture
def pairing(master: MasterHub) -> Iterator[tuple[PairingHub, Address]]:
    with closing(PairingHub("tcp://127.0.0.1:*", MASTER.public, master.registrar.admit)) as hub:
        port = int(hub.address.rpartition(":")[2])
        yield hub, Address("127.0.0.1", port - 3)


class PairingThread:
    def __init__(self, address: Address) -> None:
        self.code = ""
        self.shown = threading.Event()
        self.result: object = None
        self._thread = threading.Thread(target=self._run, args=(address,))
        self._thread.start()

    def end(self) -> object:
        self._thread.join(WAIT_S)
        return self.result

    def _run(self, address: Address) -> None:
        try:
            self.result = pair(address, WORKER, "pi", self._show, timeout_s=WAIT_S)
        except (UserError, PeerError) as error:
            self.result = error

    def _show(self, code: str) -> None:
        self.code = code
        self.shown.set()


def test_pairing_code_admits_a_worker(master: MasterHub, pairing: tuple[PairingHub, Address]) -> None:
    hub, address = pairing
    attempt = PairingThread(address)
    assert attempt.shown.wait(WAIT_S)
    wait_until(hub.pending)
    assert hub.pending()[0].host == "pi"
    with pytest.raises(UserError, match="no waiting worker"):
        hub.approve("AAAA-AAAA")
    assert hub.approve(attempt.code.lower()).name == NAME
    assert attempt.end() == MASTER.public
    with link(master) as spoke:
        assert enrol(spoke, "pi").name == NAME


def test_pairing_worker_notices_that_the_master_closed(pairing: tuple[PairingHub, Address]) -> None:
    hub, address = pairing
    attempt = PairingThread(address)
    assert attempt.shown.wait(WAIT_S)
    hub.close()
    assert "went away" in str(attempt.end())
