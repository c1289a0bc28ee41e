"""CURVE key pairs: the identity of a node."""

from dataclasses import dataclass, field

import zmq

__all__ = ["CurveKeys"]


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A key pair in Z85 text (40 characters each). The secret stays out of `repr`, so out of logs."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> "CurveKeys":
        public, secret = zmq.curve_keypair()
        return cls(public.decode("ascii"), secret.decode("ascii"))
