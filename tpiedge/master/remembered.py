"""What the master remembers of workers and clients that may be gone, by name: ever new names take bounded memory."""

from typing import Final, Generic, TypeVar

#: More than a cluster has members, so that none of them is forgotten for another.
REMEMBERED: Final = 1024

_Known = TypeVar("_Known")


class Remembered(Generic[_Known]):
    """Something of each, and of the REMEMBERED of whom something was noted last."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> _Known | None:
        return self._known.get(name)

    def note(self, name: str, known: _Known) -> None:
        """In place of what was known of `name`; of another one, that of whom nothing was noted for longest, nothing is
        known then where there would be too many."""
        self._known.pop(name, None)
        self._known[name] = known
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def forget(self, name: str) -> None:
        self._known.pop(name, None)
