"""Sends the master's messages to machines and nodes without ever waiting."""

import logging
from collections.abc import Callable

from tpiedge.launch.bootstrap import control_name
from tpiedge.transport.endpoint import EndpointClosed, Unreachable
from tpiedge.transport.hub import Hub
from tpiedge.wire.messages import Message

_log = logging.getLogger(__name__)


class Outbox:
    """For the thread that owns the hub. A message to a peer that is gone is dropped: its silence is noticed anyway."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def send(self, message: Message, to: str) -> None:
        """Sends without waiting. Raises ProtocolError for a value that does not fit its field."""
        try:
            self._hub.send(message, to=to, timeout_s=0.0)
        except (Unreachable, EndpointClosed):
            _log.debug("%s does not get %s: it is not connected", to, type(message).__name__)

    def to_nodes(self, epoch: int) -> Callable[[Message, int], None]:
        """A function that sends a message to the node of a rank in `epoch`."""
        return lambda message, rank: self.send(message, control_name(rank, epoch))
