"""The door that lets workers in (enrolment), as a master sees it."""

from collections.abc import Sequence
from typing import Protocol

from tpiedge.wire.messages import Message


class Door(Protocol):
    """Called by the control thread."""

    def heard(self, peer: str, message: Message, now: float) -> None:
        """Answers a peer that is not in yet, or that introduces itself."""
        ...

    def is_member(self, peer: str) -> bool: ...

    def settle(self) -> None:
        """Answers peers for whom something was waited for. The hub is woken when there are any."""
        ...

    def newcomers(self) -> Sequence[str]:
        """The peers that were let in for good since the last call, in their order."""
        ...

    def tick(self, now: float) -> None: ...
