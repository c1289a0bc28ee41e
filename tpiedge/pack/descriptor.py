"""An open file that belongs to an object and ends with it."""

import os
from types import TracebackType
from typing import Self


class Descriptor:
    """Owns the file descriptor `_fd`, below 0 where there is none. `close` may be called twice; a context manager."""

    _fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
