"""Checks that the precisions of weights, arithmetic and KV cache go together."""

from typing import Final

from tpiedge.errors import UserError
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH, why_missing
from tpiedge.pack.layout import Storage
from tpiedge.pack.specs import Precision
from tpiedge.wire.fields import Compute, KVPrecision

_NUMBERS: Final = ("f32", "bf16")


def usual_compute(stored: Precision) -> Compute:
    return "int8" if stored.quantised else "f32"


def check_compute(stored: Precision, compute: Compute) -> None:
    """Raises UserError unless layers in `stored` can be computed in `compute`."""
    if stored.quantised and compute == "bf16":
        raise UserError(
            f"--compute bf16 does not go with weights in {stored.value}, which are computed with in int8 or f32: "
            "leave --compute out, or choose --precision bf16"
        )
    if compute == "int8" and not stored.quantised:
        raise UserError(
            f"--compute int8 does not go with weights in {stored.value}: add --precision q8 or --precision q4"
        )
    if compute == "bf16" and stored is Precision.F32:
        raise UserError("--compute bf16 needs weights in bf16: add --precision bf16")


def check_native(stored: Precision, compute: Compute, kv: KVPrecision) -> None:
    """Raises UserError if this computer lacks native kernels for these precisions."""
    weights = (f"weights in {stored.value}", "--precision bf16 (or --compute f32)")
    keys = (f"keys and values in {kv}", "--kv-precision bf16")
    quantised = [weights] * (compute == "int8") + [keys] * (kv not in _NUMBERS)
    missing = why_missing() if quantised else ""
    if missing:
        what, flags = (" and ".join(words) for words in zip(*quantised, strict=True))
        raise UserError(f"{what} need native kernels, which {missing}; or choose {flags}")


def check_head_width(kv: KVPrecision, head_dim: int) -> None:
    """Raises UserError if the KV precision `kv` cannot keep heads of this width."""
    if kv not in _NUMBERS and head_dim > MAX_HEAD_WIDTH:
        raise UserError(
            f"keys and values of heads of {head_dim} columns, more than {MAX_HEAD_WIDTH}, cannot be kept in {kv}: "
            "choose --kv-precision bf16"
        )


def computed_apart(storage: Storage, head_dim: int) -> str:
    """Names the part of the model whose bits depend on the machine (docs/kernels.md), or returns ""."""
    if not storage.head.quantised:
        return f"a head kept in {storage.head.value}"
    if head_dim > MAX_HEAD_WIDTH:
        return f"attention heads of {head_dim} columns, more than {MAX_HEAD_WIDTH}"
    return ""
