"""A worker knows its master by a name, which means something else later."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.command import COMMAND
from tests.process.network.cluster import NetworkCluster
from tests.process.network.conftest import Exact
from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.machines import Worker
from tpiedge.host.addresses import Address

_OTHER_ADDRESS = "10.213.7.77"
_NAME = "kitchen-master.test"


@pytest.fixture
def cluster(namespaces: Namespaces, tmp_path: Path) -> Iterator[NetworkCluster]:
    with contextlib.closing(NetworkCluster(tmp_path, namespaces, "--min-workers", 1)) as made:
        yield made


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


def by_name(hosts: Path) -> tuple[object, ...]:
    mounted = f'mount --bind {hosts} /etc/hosts && exec "$0" "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, COMMAND)


def joined_by_name(cluster: NetworkCluster, hosts: Path, *addresses: str) -> Worker:
    hosts.write_text("".join(f"{address} {_NAME}\n" for address in addresses))
    cluster.start_master()
    port = cluster.address.port
    worker = cluster.join(
        "kitchen", "--connect", f"{_NAME}:{port}", machine="worker1", program=by_name(hosts)
    )
    cluster.wait_ready(2)
    return worker


@pytest.mark.fault("P12", "the master's name means nothing any more: the worker connects again where it was")
@pytest.mark.fault("P12", "the master's name means another address: the worker finds it there, by its key")
def test_the_name_of_the_master_means_nothing_and_then_another_address(
    cluster: NetworkCluster, hosts: Path, exact: Exact
) -> None:
    worker, port = joined_by_name(cluster, hosts, cluster.address.host), cluster.address.port
    agent, name = worker.agent, cluster.node("kitchen")["name"]
    hosts.write_text("")
    cluster.master.end(signal.SIGKILL)
    cluster.start_master()
    cluster.wait_ready(2)
    exact(cluster)
    with cluster.namespaces.also_addressed(MASTER, _OTHER_ADDRESS):
        cluster.master.end()
        cluster.address = Address(_OTHER_ADDRESS, port)
        hosts.write_text(f"{_OTHER_ADDRESS} {_NAME}\n")
        cluster.start_master()
        cluster.wait_ready(2)
        exact(cluster)
        assert cluster.node("kitchen")["name"] == name
        assert worker.agent == agent
        assert "the master is at another address now: joining it there" in worker.log
        worker.process.end()
        cluster.master.end()


@pytest.mark.fault("P12", "the master's name has several addresses: a worker finds it at whichever it is")
def test_the_name_of_the_master_means_several_addresses(
    cluster: NetworkCluster, hosts: Path, exact: Exact
) -> None:
    port = cluster.address.port
    worker = joined_by_name(cluster, hosts, _OTHER_ADDRESS, cluster.address.host)
    exact(cluster)
    with cluster.namespaces.also_addressed(MASTER, _OTHER_ADDRESS):
        cluster.master.end()
        cluster.address = Address(_OTHER_ADDRESS, port)
        cluster.start_master()
        cluster.wait_ready(2)
        exact(cluster)
        assert "the master is at another address now: joining it there" in worker.log
        worker.process.end()
        cluster.master.end()
