"""Which arithmetic multiplies activations with weights (not how weights are stored)."""

from enum import StrEnum


class Arithmetic(StrEnum):
    """F32: bf16 weights are widened exactly. BF16: activations are rounded to bf16, sums are kept in f32.

    INT8, for quantised weights: activations are quantised, too (panels.py says how); other weights meet them as in F32.
    """

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
