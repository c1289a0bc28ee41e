"""Masters announce themselves, and workers without an address find them, on machines of their own."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zeroconf

from tests.process.command import run_command, wait_for
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.serving.machines import Process, measured
from tests.process.serving.serving import START_S
from tpiedge.host.addresses import Address
from tpiedge.joining.identity import cluster_name, load_or_create_keys
from tpiedge.joining.mdns import SERVICE, AnnouncedMaster, announced, labels, masters_nearby
from tpiedge.wire.codec import PROTOCOL

LOOK_S = 5.0
PORT = 7070
CLUSTER = "0f3a9bc2"
#: As DNS numbers them.
_RESPONSE, _PTR, _IN = 0x8400, 12, 1


@pytest.fixture
def start(namespaces: Namespaces, tmp_path: Path):
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
    with contextlib.ExitStack() as stack:
        with namespaces.inside(machine):
            address = Address(namespaces.addresses[machine], port)
            shown = stack.enter_context(announced(name, address, PROTOCOL, cluster))
        yield shown


def _seen(namespaces: Namespaces, machine: str) -> tuple[AnnouncedMaster, ...]:
    with namespaces.inside(machine):
        return masters_nearby(LOOK_S)


@pytest.mark.thin
def test_worker_finds_master_by_mdns_and_joins_by_code(namespaces, start, tmp_path) -> None:
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
        assert cluster.status()["ready"] is False  # the worker has not been let in yet
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
        assert "joining the known master at " in again.log
        again.end()
        master.end()
        assert _seen(namespaces, "worker1") == ()
    finally:
        cluster.close()


@pytest.mark.fault("H12", "whoever claims a master's name in the network neither stops nor delays it")
def test_master_with_contested_mdns_names_serves_unannounced(namespaces, tmp_path) -> None:
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


@contextlib.contextmanager
def _repeating(mdns: zeroconf.Zeroconf, *names: str) -> Iterator[None]:
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
