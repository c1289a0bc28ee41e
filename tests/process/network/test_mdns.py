"""Masters that announce themselves, and workers that nobody told whom to join: on machines of their own."""

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
import zeroconf

from tests.process.command import COMMAND, end_terminal, run_command, wait_for
from tests.process.network.cluster import NetworkCluster
from tests.process.network.conftest import machines
from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.machines import Process, measured
from tests.process.serving.serving import START_S
from tpiedge.host.addresses import Address
from tpiedge.host.private_file import private_folder
from tpiedge.joining.announced import SERVICE, AnnouncedMaster, labels
from tpiedge.joining.identity import cluster_name, load_or_create_keys
from tpiedge.joining.mdns import announced, masters_nearby
from tpiedge.wire.messages import PROTOCOL
from tpiedge.worker.trusted_masters import TrustedMasters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: network namespaces are Linux's")

USER, PEER = 2, 3
LOOK_S = 5.0
PORT = 7070
CLUSTER = "0f3a9bc2"
#: As DNS numbers them.
_RESPONSE, _PTR, _IN = 0x8400, 12, 1


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    """Other machines than those of the other tests, whose workers would find these masters."""
    with machines() as made:
        yield made


@pytest.fixture
def start(namespaces: Namespaces, tmp_path: Path):
    """Starts `tpiedge worker` without an address on a machine, with `options`."""
    started: list[Process] = []

    def begin(machine: str, *options: object) -> Process:
        with namespaces.inside(machine):
            started.append(Process(tmp_path / f"{machine}.log", *_worker(tmp_path, machine), *options))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def _worker(folder: Path, machine: str) -> list[object]:
    state = folder / f"{machine}-state"
    measured(state / "worker")
    folders = ["--state", state, "--cache", folder / f"{machine}-cache"]
    return ["worker", "--name", machine, "--threads", 1, *folders]


@contextlib.contextmanager
def _announcing(
    namespaces: Namespaces, machine: str, name: str, port: int = PORT, cluster: str = CLUSTER
) -> Iterator[str]:
    """A master of the `name` is announced from the machine; none is there."""
    with contextlib.ExitStack() as stack:
        with namespaces.inside(machine):
            address = Address(namespaces.addresses[machine], port)
            shown = stack.enter_context(announced(name, address, PROTOCOL, cluster))
        yield shown


def _seen(namespaces: Namespaces, machine: str) -> tuple[AnnouncedMaster, ...]:
    with namespaces.inside(machine):
        return masters_nearby(LOOK_S)


@pytest.mark.thin
def test_a_worker_without_an_address_joins_the_only_master_by_its_code(namespaces, start, tmp_path) -> None:
    cluster = NetworkCluster(tmp_path / "cluster", namespaces, "--min-workers", 1, "--announce")
    try:
        master = cluster.start_master()
        wait_for(lambda: "announced here as " in master.log, START_S)
        (found,) = _seen(namespaces, "worker1")
        assert (found.address, found.protocol) == (cluster.address, PROTOCOL)
        assert found.cluster == cluster_name(load_or_create_keys(cluster.state / "master").public)
        assert f"announced here as {found.name}; on another machine:  tpiedge worker\n" in master.log
        worker = start("worker1")
        wait_for(lambda: "the code of this worker is " in worker.log, START_S)
        assert f"joining {found.name} at {cluster.address}\n" in worker.log
        assert cluster.status()["ready"] is False  # whoever found it is not in yet
        code = worker.log.partition("the code of this worker is ")[2].partition(";")[0]
        approved = run_command("nodes", "approve", code, "--state", cluster.state)
        assert approved.status == 0, approved.err
        cluster.wait_ready(2)
        worker.end()
        with (
            _announcing(namespaces, "worker2", "liar", PORT + 4),
            _announcing(namespaces, "worker2", "other"),
        ):
            again = start("worker1")
            cluster.wait_ready(2)
        assert "joining the master that this machine knows at " in again.log
        again.end()
        master.end()
        assert _seen(namespaces, "worker1") == ()
    finally:
        cluster.close()


def test_a_known_master_that_moved_is_found_beside_strangers_and_by_nobody_else(
    namespaces, start, tmp_path
) -> None:
    """Without it strangers stop nobody: the worker says that its master is not there, and a service starts it again."""
    cluster = NetworkCluster(tmp_path / "cluster", namespaces, "--min-workers", 1, "--announce")
    master_key = load_or_create_keys(cluster.state / "master").public
    book = TrustedMasters(private_folder(tmp_path / "worker1-state" / "worker"))
    before = Address(namespaces.addresses["worker2"], PORT)
    book.remember(before, master_key)
    try:
        with (
            _announcing(namespaces, "worker2", "desk", cluster=cluster_name(master_key)),
            _announcing(namespaces, "worker2", "attic"),
        ):
            worker = start("worker1")
            assert worker.wait() == PEER
            line = worker.log.splitlines()[-1]
            assert line.startswith(
                f"tpiedge: no master that this machine knows is there ({before}), and others"
            )
            master = cluster.start_master()
            wait_for(lambda: "announced here as " in master.log, START_S)
            worker = start("worker1")
            wait_for(lambda: "which this machine knows" in worker.log, START_S)
            assert f" at {cluster.address}, which this machine knows" in worker.log
            assert worker.wait() == USER  # it is no member there
    finally:
        cluster.close()


@pytest.mark.fault("H12", "whoever claims a master's name in the network neither stops nor delays it")
def test_a_master_whose_names_are_contested_serves_and_says_that_it_is_not_announced(
    namespaces, tmp_path
) -> None:
    cluster = NetworkCluster(tmp_path / "cluster", namespaces, "--announce")
    names = labels(socket.gethostname(), cluster_name(load_or_create_keys(cluster.state / "master").public))
    try:
        with contextlib.ExitStack() as stack:
            with namespaces.inside("worker2"):
                own = [namespaces.addresses["worker2"]]
                mdns = stack.enter_context(
                    contextlib.closing(zeroconf.Zeroconf(own, ip_version=zeroconf.IPVersion.V4Only))
                )
                stack.enter_context(_repeating(mdns, *(f"{name}.{SERVICE}" for name in names)))
            master = cluster.start_master()
            words = (
                f"not announced: others in this network claim the names {names[0]} and {names[1]}; on another"
            )
            wait_for(lambda: words in master.log, START_S)
            cluster.wait_ready(1)
        master.end()
    finally:
        cluster.close()


def test_nobody_is_there(start) -> None:
    worker = start("worker1")
    assert worker.wait() == PEER
    looking, line = worker.log.splitlines()
    assert looking == "looking for masters in this network (5 s); --connect HOST names one"
    assert line.startswith("tpiedge: no master announced itself within 5 s: start one with --announce")


def test_a_master_that_is_waited_for(namespaces, start) -> None:
    worker = start("worker1", "--wait", 60)
    wait_for(lambda: "looking for masters" in worker.log, START_S)
    with _announcing(namespaces, MASTER, "desk"):
        wait_for(lambda: "joining desk at " in worker.log, START_S)
        wait_for(lambda: "connection refused" in worker.log, START_S)  # it is not there


def test_several_with_the_same_name_and_nobody_to_ask(namespaces, start) -> None:
    with _announcing(namespaces, MASTER, "desk"), _announcing(namespaces, "worker2", "desk") as second:
        assert second == f"desk-{CLUSTER[:4]}"
        worker = start("worker1")
        assert worker.wait() == USER
    line = worker.log.splitlines()[-1]
    assert line.startswith("tpiedge: 2 masters announce themselves: say which with --connect HOST:PORT (desk")
    for machine in (MASTER, "worker2"):
        assert f"{namespaces.addresses[machine]}:{PORT}" in line


def test_a_terminal_is_asked_which(namespaces, tmp_path) -> None:
    with (
        _announcing(namespaces, MASTER, "desk"),
        _announcing(namespaces, "worker2", "attic"),
        namespaces.inside("worker1"),
    ):
        words = [str(word) for word in _worker(tmp_path, "worker1")]
        worker = pexpect.spawn(COMMAND, words, timeout=START_S, encoding="utf-8")
        try:
            worker.expect("1  attic at [0-9.:]+\r\n2  desk at [0-9.:]+\r\nWhich one.*: ")
            worker.sendline("2")
            worker.expect(f"joining desk at {namespaces.addresses[MASTER]}:{PORT}")
            worker.expect(f"nothing answers at {namespaces.addresses[MASTER]}:{PORT}")
            worker.expect(pexpect.EOF)
        finally:
            end_terminal(worker)
    assert worker.exitstatus == PEER


@pytest.mark.fault(
    "H12", "names that strangers announce in the network are shown without control characters, or not at all"
)
def test_what_strangers_announce_is_shown_harmless_or_not_at_all(namespaces) -> None:
    """Somebody on the LAN: names that command a terminal, or are alike, addresses elsewhere, wrong ports."""
    own = namespaces.addresses["worker2"]
    with (
        namespaces.inside("worker2"),
        contextlib.closing(zeroconf.Zeroconf([own], ip_version=zeroconf.IPVersion.V4Only)) as mdns,
        _saying(
            mdns,
            _record("\u202ered", own, PORT, b"\x1b[31m"),
            _record("red", own, PORT + 12),
            _record("far", "192.0.2.1", PORT),
            _record("itself", "127.0.0.1", PORT),
            _record("portless", own, 0),
            _record("old", own, PORT + 8, b"1"),
        ),
    ):
        seen = _seen(namespaces, "worker1")
    assert seen == (
        AnnouncedMaster("old", Address(own, PORT + 8), 1),
        *sorted(
            (
                AnnouncedMaster("red", Address(own, PORT), -1),
                AnnouncedMaster("red", Address(own, PORT + 12), PROTOCOL),
            ),
            key=lambda one: str(one.address),
        ),
    )


def _record(name: str, address: str, port: int, protocol: bytes = b"%d" % PROTOCOL) -> zeroconf.ServiceInfo:
    return zeroconf.ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=port,
        properties={"protocol": protocol, "key": "x" * 200},
        server=f"stranger-{name.encode().hex()}.local.",
        parsed_addresses=[address],
    )


@contextlib.contextmanager
def _saying(mdns: zeroconf.Zeroconf, *records: zeroconf.ServiceInfo) -> Iterator[None]:
    """They are announced, and beside them names that no library would announce."""
    for record in records:
        mdns.register_service(record, strict=False)
    strange = (f"\x1b[2J\x07.{SERVICE}", f"{'x' * 64}.{SERVICE}", "printer._ipp._tcp.local.", ".")
    with _repeating(mdns, *strange):
        yield


@contextlib.contextmanager
def _repeating(mdns: zeroconf.Zeroconf, *names: str) -> Iterator[None]:
    """Somebody says again and again that there are masters of these full names."""
    done = threading.Event()

    def noise() -> None:
        while not done.wait(0.1):
            for name in names:
                out = zeroconf.DNSOutgoing(_RESPONSE)
                out.add_answer_at_time(zeroconf.DNSPointer(SERVICE, _PTR, _IN, 120, name), 0)
                with contextlib.suppress(zeroconf.Error):  # it will not send each
                    mdns.send(out)

    talker = threading.Thread(target=noise)
    talker.start()
    try:
        yield
    finally:
        done.set()
        talker.join()
