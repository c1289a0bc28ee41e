"""A ZeroMQ context with its gatekeeper: the I/O threads that endpoints share."""

import itertools

import zmq

from tpiedge.transport.admission import Admission, Gatekeeper


class ZmqContext:
    """Close the endpoints first: `close` waits for them, and ends every thread.

    With `io_threads` > 1 the encryption of different connections runs in parallel.
    """

    def __init__(self, io_threads: int = 1) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._gatekeeper: Gatekeeper | None = None
        self._numbers = itertools.count()

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        return self._context.socket(kind)

    def guard(self, admission: Admission) -> bytes:
        """A new ZAP domain whose connections `admission` judges. Set it on a socket before it is bound."""
        if self._gatekeeper is None:
            self._gatekeeper = Gatekeeper(self._context)
        domain = f"hub-{next(self._numbers)}".encode()
        self._gatekeeper.guard(domain, admission)
        return domain

    def close(self) -> None:
        self._context.term()
        if self._gatekeeper is not None:
            self._gatekeeper.join()
