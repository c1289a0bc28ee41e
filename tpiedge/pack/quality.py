"""quality.json: what quantising did to each tensor of a pack.

It lies beside the manifest, is no part of the pack's identity, and does not travel. Ratios are in dB, of the squares
of the weights to the squares of their errors; null where nothing changed.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpiedge.errors import UserError
from tpiedge.kernels.quantise import QuantisationError
from tpiedge.pack.files import open_regular
from tpiedge.pack.specs import JSON, Precision
from tpiedge.pack.storage import parse_precision

QUALITY_NAME = "quality.json"
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class TensorQuality:
    """The error of the checkpoint's tensor `tensor`, a matrix called `matrix` in its blob."""

    tensor: str
    matrix: str
    precision: Precision
    error: QuantisationError


@dataclass(frozen=True)
class Quality:
    """The errors of all quantised tensors, in the order of the pack."""

    tensors: tuple[TensorQuality, ...]

    @property
    def total(self) -> QuantisationError:
        return sum((tensor.error for tensor in self.tensors), QuantisationError())

    def to_json(self) -> dict[str, JSON]:
        """The content of quality.json, and of a report."""
        return {
            "sqnr_db": _finite(self.total),
            "tensors": [
                {
                    "tensor": tensor.tensor,
                    "matrix": tensor.matrix,
                    "precision": tensor.precision.value,
                    "sqnr_db": _finite(tensor.error),
                    "signal": tensor.error.signal,
                    "noise": tensor.error.noise,
                }
                for tensor in self.tensors
            ],
        }


def load_quality(pack: Path) -> Quality | None:
    """The quality of the pack in folder `pack`; None where it has no such file, or one that is damaged."""
    try:
        with open(open_regular(pack / QUALITY_NAME), "rb") as file:
            return _parse(json.loads(file.read(_MAX_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UserError):
        return None


def _parse(value: Any) -> Quality:
    return Quality(
        tuple(
            TensorQuality(
                str(one["tensor"]),
                str(one["matrix"]),
                parse_precision(one["precision"]),
                QuantisationError(float(one["signal"]), float(one["noise"])),
            )
            for one in value["tensors"]
        )
    )


def _finite(error: QuantisationError) -> float | None:
    return round(error.sqnr_db, 3) if math.isfinite(error.sqnr_db) else None
