"""A worker knows its master by a name, which means something else later."""

import contextlib
import signal
from pathlib import Path

import pytest

from tests.process.command import COMMAND
from tests.process.conftest import Exact
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import MASTER, Namespaces
from tpiedge.host.addresses import Address

_OTHER_ADDRESS = "10.213.7.77"
_NAME = "kitchen-master.test"


def by_name(hosts: Path) -> tuple[object, ...]:
    mounted = f'mount --bind {hosts} /etc/hosts && exec "$0" "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, COMMAND)


@pytest.mark.fault("P12", "the master's name has several addresses: a worker finds it at whichever it is")
@pytest.mark.fault("P12", "the master's name means nothing any more: the worker connects again where it was")
@pytest.mark.fault("P12", "the master's name means another address: the worker finds it there, by its key")
def test_worker_follows_its_master_through_name_changes(
    namespaces: Namespaces, tmp_path: Path, exact: Exact
) -> None:
    hosts = tmp_path / "hosts"
    with contextlib.closing(NetworkCluster(tmp_path, namespaces, "--min-workers", 1)) as cluster:
        first, other = cluster.address, Address(_OTHER_ADDRESS, cluster.address.port)
        hosts.write_text(f"{other.host} {_NAME}\n{first.host} {_NAME}\n")
        cluster.start_master()
        worker = cluster.join(
            "kitchen", "--connect", f"{_NAME}:{first.port}", machine="worker1", program=by_name(hosts)
        )
        cluster.wait_ready(2)
        agent, name = worker.agent, cluster.node("kitchen")["name"]

        def check_found(address: Address, moved: int) -> None:
            cluster.address = address
            cluster.start_master()
            cluster.wait_ready(2)
            exact(cluster)
            assert worker.log.count("the master is at another address now: joining it there") == moved
            assert (worker.agent, cluster.node("kitchen")["name"]) == (agent, name)

        with namespaces.also_addressed(MASTER, _OTHER_ADDRESS):
            cluster.master.end()
            check_found(other, 1)
            hosts.write_text("")
            cluster.master.end(signal.SIGKILL)
            check_found(other, 1)
            cluster.master.end()
            hosts.write_text(f"{first.host} {_NAME}\n")
            check_found(first, 2)
