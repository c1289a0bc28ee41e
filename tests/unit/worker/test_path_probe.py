import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.joining.identity import peer_name
from tpiedge.transport.admission import UnknownPeerPolicy
from tpiedge.transport.endpoint import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.monitor import LinkMonitor
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.worker import masters
from tpiedge.worker.masters import PathState, probe_path

NAMED, KNOWN = Address("kitchen.test", 7070), Address("127.0.0.9", 7070)
KEYS, OTHERS = CurveKeys.generate(), CurveKeys.generate()
WAIT_S = 10.0


@contextmanager
def master(keys: CurveKeys) -> Iterator[Address]:
    unknown = UnknownPeerPolicy(peer_name)
    with ZmqHub("tcp://127.0.0.1:*", keys, "master", {}, plane=CONTROL, unknown=unknown) as hub:
        host, _, port = hub.address.removeprefix("tcp://").rpartition(":")
        stop = threading.Event()
        thread = threading.Thread(target=lambda: [hub.recv(0.01) for _ in iter(stop.is_set, True)])
        thread.start()
        try:
            yield Address(host, int(port))
        finally:
            stop.set()
            thread.join(WAIT_S)


def probe(
    monkeypatch: pytest.MonkeyPatch, *found: Address, key: str = KEYS.public, known: Address = KNOWN
) -> PathState:
    monkeypatch.setattr(masters, "resolve_all", lambda _named: found)
    monkeypatch.setattr(LinkMonitor, "wait", lambda monitor, _s, wait=LinkMonitor.wait: wait(monitor, 1.0))
    return probe_path(NAMED, known, key)


def test_master_moved_only_if_new_address_has_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with master(KEYS) as address:
        assert probe(monkeypatch, address, key=OTHERS.public) == "unknown"
        assert probe(monkeypatch, address) == "moved"
    assert probe(monkeypatch, address) == "unknown", "nobody is there"


@pytest.mark.parametrize("first", [True, False])
def test_known_address_wins_while_the_master_answers_there(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    def order(known: Address, other: Address) -> tuple[Address, Address]:
        return (known, other) if first else (other, known)

    with master(KEYS) as other:
        assert probe(monkeypatch, *order(KNOWN, other)) == "moved", "nobody is there any more"
        with master(OTHERS) as impostor:
            assert probe(monkeypatch, *order(impostor, other), known=impostor) == "moved"
        with master(KEYS) as known:
            assert probe(monkeypatch, *order(known, other), known=known) == "unknown"
    assert probe(monkeypatch, *order(KNOWN, other)) == "unknown", "nobody is anywhere"


def test_unresolvable_name_gives_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_named: Address) -> tuple[Address, ...]:
        raise UserError("the host is not known here")

    monkeypatch.setattr(masters, "resolve_all", unknown)
    assert probe_path(NAMED, KNOWN, KEYS.public) == "unknown"


@pytest.mark.parametrize(("passed", "seen"), [(True, "unknown"), (False, "small MTU"), (None, "unknown")])
def test_lost_large_packets_give_small_mtu(
    monkeypatch: pytest.MonkeyPatch, passed: bool | None, seen: PathState
) -> None:
    monkeypatch.setattr(masters, "passes_large_packets", lambda *_address: passed)
    assert probe(monkeypatch, KNOWN) == seen
