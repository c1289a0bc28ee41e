"""A cluster whose machines are network namespaces."""

from pathlib import Path
from typing import Any

from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving
from tpiedge.host.addresses import Address


class NetworkCluster(Serving):
    def __init__(self, folder: Path, namespaces: Namespaces, *options: object, **more: object) -> None:
        super().__init__(folder, *options, **more)
        self.namespaces = namespaces
        self.address = Address(namespaces.addresses[MASTER], self.port)

    def join(self, name: str, *options: object, machine: str = "", **more: Any) -> Worker:
        """A worker on the `machine`, which is its own name, too, unless told. `more`: as of `start_worker`."""
        with self.namespaces.inside(machine or name):
            return self.start_worker(name, *options, **more)
