"""What the master says to machines and nodes: at once or not at all."""

import logging
from collections.abc import Callable

from tpiedge.nodes.session import node_name
from tpiedge.transport.endpoint import EndpointClosed, Unreachable
from tpiedge.transport.hub import Hub
from tpiedge.wire.messages import Message

__all__ = ["Outbox"]

_log = logging.getLogger(__name__)


class Outbox:
    """For the thread that owns the hub. A peer that is gone is noticed by its silence, and must not hold up others."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def send(self, message: Message, to: str) -> None:
        """Raises ProtocolError for what no message can carry."""
        try:
            self._hub.send(message, to=to, timeout_s=0.0)
        except (Unreachable, EndpointClosed):
            _log.debug("%s does not get %s: it is not connected", to, type(message).__name__)

    def to_nodes(self, epoch: int) -> Callable[[Message, int], None]:
        """Sends a message to the node of that rank in `epoch`."""
        return lambda message, rank: self.send(message, node_name(rank, epoch))
