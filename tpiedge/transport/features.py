"""What the ZeroMQ library of this computer can do."""

import zmq


def curve_available() -> bool:
    """Whether links can be encrypted; without, no link is made at all."""
    return zmq.has("curve")


def zeromq_versions() -> str:
    """'pyzmq 27.1.0, libzmq 4.3.5'."""
    return f"pyzmq {zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}"
