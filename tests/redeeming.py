"""Redeems secrets of tokens without a master."""

from functools import partial
from pathlib import Path

from tpiedge.joining.members import KnownWorker, MemberJournal, Redemption
from tpiedge.joining.tokens import TokenStore
from tpiedge.transport.keys import CurveKeys


def redeem(folder: Path, secret: str) -> Redemption:
    """A new worker joins with it the master of `folder`."""
    worker = KnownWorker(CurveKeys.generate().public, "pi", 0.0, "token")
    return MemberJournal(folder).join(worker, partial(TokenStore(folder).check, secret))
