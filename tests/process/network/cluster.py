"""A cluster whose machines are network namespaces."""

from pathlib import Path

from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.machines import SPEED, Worker
from tests.process.serving.serving import Serving
from tpiedge.host.addresses import Address

__all__ = ["NetworkCluster"]


class NetworkCluster(Serving):
    """Its master is on the machine that the tests are on."""

    def __init__(self, folder: Path, namespaces: Namespaces, *options: object, **more: object) -> None:
        super().__init__(folder, *options, **more)
        self.namespaces = namespaces
        self.address = Address(namespaces.addresses[MASTER], self.port)

    def join(self, name: str, *options: object, token: bool = True, bytes_per_s: float = SPEED) -> Worker:
        """A worker on the machine `name`, which is its own name, too."""
        with self.namespaces.inside(name):
            return self.start_worker(name, *options, token=token, bytes_per_s=bytes_per_s)
