"""What the residency machine tells its shell to do."""

from dataclasses import dataclass

__all__ = ["Drop", "Instruction", "Read", "Release"]


@dataclass(frozen=True, slots=True)
class Read:
    """Read `piece` to `offset` of the ring, or to its own place if that is None; then say `loaded(ticket)`."""

    ticket: int
    piece: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Drop:
    """The pages of the place of the piece that was pinned go back to the system."""

    piece: int


@dataclass(frozen=True, slots=True)
class Release:
    """The pages of the ring go back to the system: nothing passes through it any more."""


Instruction = Read | Drop | Release
