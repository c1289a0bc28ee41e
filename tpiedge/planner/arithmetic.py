"""Which arithmetic goes with which stored weights. Pure."""

from tpiedge.errors import UserError
from tpiedge.pack.layout import Precision
from tpiedge.wire.fields import Compute

__all__ = ["check_compute", "usual_compute"]


def usual_compute(stored: Precision) -> Compute:
    """The arithmetic for layers that are `stored` so, where no other was asked for."""
    return "int8" if stored.quantised else "f32"


def check_compute(stored: Precision, compute: Compute) -> None:
    """Raises UserError, in words of the flags, unless layers that are `stored` so can be computed with in `compute`."""
    if stored.quantised and compute != "int8":
        raise UserError(
            f"--compute {compute} does not go with weights in {stored.value}, which are computed with in int8: "
            "leave --compute out, or choose --precision bf16"
        )
    if compute == "int8" and not stored.quantised:
        raise UserError(
            f"--compute int8 does not go with weights in {stored.value}: add --precision q8 or --precision q4"
        )
    if compute == "bf16" and stored is Precision.F32:
        raise UserError("--compute bf16 needs weights in bf16: add --precision bf16")
