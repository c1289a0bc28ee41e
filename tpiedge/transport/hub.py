"""The control plane's hub as the master sees it: an endpoint that knows which keys it lets in."""

from typing import Protocol

from tpiedge.transport.admission import Admission
from tpiedge.transport.endpoint import Endpoint
from tpiedge.wire.messages import Message


class Hub(Endpoint, Protocol):
    """One thread owns it; `wake` and `admission` are for any."""

    @property
    def admission(self) -> Admission: ...

    def wake(self) -> None:
        """End a wait in `recv` that is under way, or else the next one, as if its time were up."""
        ...

    def address_of(self, name: str) -> str:
        """The IP address that `name` is connected from, "" where it is not known."""
        ...

    def is_connected(self, name: str) -> bool:
        """Whether the connection of `name` stands, as far as this computer knows: it is told at once of a process that
        ended there, and of packets that vanish only after minutes."""
        ...

    def disconnect(self, name: str, farewell: Message | None = None) -> None:
        """Forget the connection of `name`, which is admitted no more; `farewell` is the last it may hear."""
        ...
