"""Raw ZeroMQ sockets that do at a hub what no spoke does, and the count of a process's sockets."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from typing import Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from tpiedge.joining.identity import peer_name
from tpiedge.transport.keys import CurveKeys

_WAIT_S = 60.0


def sockets_of(pid: int) -> int:
    """Counts all sockets, also those that the kernel has closed and the process has not."""
    count = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return count


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class RawPeer:
    """One connection, which is not made anew. `up`: its handshake has ended; `cut`: the other side ended it."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._events = socket.get_monitor_socket(
            int(zmq.EVENT_HANDSHAKE_SUCCEEDED) | int(zmq.EVENT_DISCONNECTED)
        )
        self._up = self._cut = False

    @property
    def up(self) -> bool:
        self._listen()
        return self._up

    @property
    def cut(self) -> bool:
        self._listen()
        return self._cut

    def send(self, frame: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            self.socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        self.socket.disable_monitor()
        self._events.close(linger=0)
        self.socket.close(linger=0)

    def _listen(self) -> None:
        self.socket.poll(0)  # a socket works on its connections while somebody calls it
        while self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            self._up |= event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._cut |= event == zmq.EVENT_DISCONNECTED


class RawPeers:
    """Peers of the hub with `address` (tcp://...) and `server_key`. A context manager."""

    def __init__(self, address: str, server_key: str) -> None:
        self._place = address.removeprefix("tcp://")
        self._server_key = server_key
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._peers: list[RawPeer] = []

    def connect(
        self,
        source: str = "127.0.0.1",
        *,
        keys: CurveKeys | None = None,
        route: bytes | None = None,
        probes: bool = True,
    ) -> RawPeer:
        """Connects a peer. `route`: its routing id (None: an honest one); `probes`: whether it introduces itself."""
        keys = keys or CurveKeys.generate()
        socket = self._context.socket(zmq.DEALER)
        made = RawPeer(socket)
        self._peers.append(made)
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.curve_serverkey = self._server_key.encode()
        socket.routing_id = route or f"{peer_name(keys.public)}/{secrets.token_hex(8)}".encode()
        socket.probe_router = int(probes)
        socket.reconnect_ivl = -1
        socket.immediate = 1
        socket.connect(f"tcp://{source}:0;{self._place}")
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()
        self._context.term()
