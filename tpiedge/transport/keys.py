"""CURVE key pairs: the identity of a node."""

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

__all__ = ["CurveKeys", "is_key"]

_KEY_LENGTH = 40


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A key pair in Z85 text (40 characters each). The secret stays out of `repr`, so out of logs."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> "CurveKeys":
        public, secret = zmq.curve_keypair()
        return cls(public.decode("ascii"), secret.decode("ascii"))


def is_key(text: str) -> bool:
    """Whether `text` is a key in Z85."""
    return len(text) == _KEY_LENGTH and text.isascii() and all(byte in z85.Z85CHARS for byte in text.encode())
