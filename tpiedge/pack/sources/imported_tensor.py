"""A tensor that others have quantised, as a source reads it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tpiedge.errors import UserError
from tpiedge.pack.dtypes import Array, SourceDtype
from tpiedge.pack.files import open_regular
from tpiedge.pack.sources.codes import Codes
from tpiedge.pack.specs import JSON

PathText: TypeAlias = Callable[[Path], str]


class OpenFiles:
    """Files by path, opened at first use, closed by `close`."""

    def __init__(self) -> None:
        self._fds: dict[Path, int] = {}

    def fd(self, path: Path) -> int:
        """Raises UserError where it cannot be opened."""
        if path not in self._fds:
            try:
                self._fds[path] = open_regular(path)
            except OSError as error:
                raise UserError(f"cannot open {path}: {error.strerror}") from None
        return self._fds[path]

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


@dataclass(frozen=True)
class ImportedTensor(ABC):
    """`shape` is that of the numbers: [outputs, inputs], or that of a vector."""

    shape: tuple[int, ...]

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """Where its bytes are."""

    @property
    @abstractmethod
    def dtype(self) -> SourceDtype:
        """The dtype of what `read` gives."""

    @abstractmethod
    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        """The rectangle, [rows, cols]. A vector is one row."""

    @abstractmethod
    def codes(self, files: OpenFiles, rows: range, cols: range, bits: int) -> Codes | None:
        """The rectangle as integers of `bits` bits, its groups counted from its first column; None where none say
        exactly the same, and where a scale is not finite."""

    @abstractmethod
    def to_json(self, path_text: PathText) -> Mapping[str, JSON]:
        """What makes it again, its paths written by `path_text`."""
