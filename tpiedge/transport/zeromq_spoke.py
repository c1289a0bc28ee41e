"""The spoke over ZeroMQ: a DEALER, always with CURVE. See zeromq.py for what it agrees on with the hub."""

import contextlib
import secrets
import time

import zmq

from tpiedge.errors import UserError
from tpiedge.transport.backlog import Flow
from tpiedge.transport.endpoint import Buffer, DuplicateName
from tpiedge.transport.framing import Plane
from tpiedge.transport.keys import CurveKeys, is_key
from tpiedge.transport.monitor import LinkMonitor
from tpiedge.transport.zeromq_endpoint import DUPLICATE, PROBE, SEND_LAST, Frame, Item, ZmqEndpoint
from tpiedge.transport.zeromq_options import ZmqContext

_LOOK_S = 0.2


class ZmqSpoke(ZmqEndpoint):
    """Connects to the hub at `address` whose public key is `server_key`, and again after every break. `ticket`: what a
    stranger shows for a place there, if it has any."""

    def __init__(
        self,
        address: str,
        server_key: str,
        keys: CurveKeys,
        name: str,
        *,
        hub_name: str,
        plane: Plane,
        io_threads: int = 1,
        context: ZmqContext | None = None,
        ticket: str = "",
    ) -> None:
        if not is_key(server_key):
            raise UserError(f"not the public key of {hub_name}: {len(server_key)} characters")
        super().__init__(zmq.DEALER, name, keys, plane, context, io_threads)
        self.address = address
        self.peers = (hub_name,)
        self._hub_name = hub_name
        self._flow = Flow()  # counted, but never looked at
        self._writable = zmq.Poller()
        self._writable.register(self._socket, zmq.POLLOUT)
        self._writable.register(self._wakeup, zmq.POLLIN)
        self._socket.curve_serverkey = server_key.encode()
        self._socket.routing_id = f"{name}/{secrets.token_hex(8)}/{ticket}".encode()
        self._socket.probe_router = 1
        # Nothing queues for a connection that does not exist yet.
        self._socket.immediate = 1
        self.monitor = LinkMonitor(self._socket)
        self._look_at = 0.0
        self._connect(address)

    def close(self) -> None:
        self.monitor.close()
        super().close()

    def way_to(self, name: str) -> tuple[bytes, Flow] | None:
        return (b"", self._flow) if name == self._hub_name else None

    def _idle(self) -> None:
        """A link over which something came that cannot be read is the one that libzmq does not mend."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        if self.monitor.gave_up():
            with contextlib.suppress(zmq.ZMQError):  # it may know the address no more
                self._socket.disconnect(self.address)
            self._socket.connect(self.address)

    def _connect(self, address: str) -> None:
        self._socket.ipv6 = address.startswith("tcp://[")
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise UserError(f"cannot connect to {address}: {error}") from None

    def _try_send(self, frame: Buffer, to: str | None) -> bool:
        if not self._waits_for(to):
            return False
        try:
            self._send_part(frame, SEND_LAST)
        except zmq.Again:
            return False
        return True

    def _waits_for(self, to: str | None) -> bool:
        return to in (None, self._hub_name)

    def _wait_to_send(self, timeout_s: float) -> None:
        self._idle()
        self._silence(self._writable.poll(int(timeout_s * 1000) + 1))

    def _receive(self, flags: int) -> Item | None:
        return self._sort(b"", self._recv_part(flags, False))

    def _sort(self, _route: bytes, frame: Frame) -> Item | None:
        if len(frame) <= len(DUPLICATE) and not frame.more:
            if frame.buffer == DUPLICATE:
                return DuplicateName(self._hub_name, self.name)
            if frame.buffer == PROBE:
                return None
        return self._received(self._hub_name, frame)
