"""CURVE key pairs, which identify a node."""

import re
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

_KEY = re.compile(f"[{re.escape(z85.Z85CHARS.decode())}]{{40}}")


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A key pair in Z85 (40 characters each). `repr` hides the secret."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> "CurveKeys":
        public, secret = zmq.curve_keypair()
        return cls(public.decode("ascii"), secret.decode("ascii"))


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def public_of(secret: str) -> str:
    return zmq.curve_public(secret.encode("ascii")).decode("ascii")


def key_bytes(text: str) -> bytes:
    return bytes(z85.decode(text.encode("ascii")))


def key_text(raw: bytes) -> str:
    return z85.encode(raw).decode("ascii")


def zeromq_versions() -> tuple[str, bool]:
    """Returns the versions as text, and whether libzmq can encrypt."""
    return f"pyzmq {zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}", zmq.has("curve")
