import pytest

from tpiedge.errors import UserError
from tpiedge.local.prepare import choose_arithmetics
from tpiedge.pack.specs import Precision
from tpiedge.wire.fields import Compute


@pytest.mark.parametrize(
    ("source", "precision", "compute", "chosen"),
    [
        (Precision.F32, None, None, (Precision.F32, "f32")),
        (Precision.BF16, None, None, (Precision.BF16, "f32")),
        (Precision.BF16, "f32", None, (Precision.BF16, "f32")),  # exact all the same
        (Precision.BF16, "f32", "f32", (Precision.F32, "f32")),
        (Precision.F32, "bf16", "bf16", (Precision.BF16, "bf16")),
        (Precision.F32, "q8", None, (Precision.Q8, "int8")),
        (Precision.BF16, "q4", None, (Precision.Q4, "int8")),
        (Precision.BF16, "q4", "int8", (Precision.Q4, "int8")),
        (Precision.Q4, None, None, (Precision.Q4, "int8")),  # a pack
    ],
)
def test_what_is_chosen(source, precision, compute, chosen):
    assert choose_arithmetics(source, precision, compute) == chosen


@pytest.mark.parametrize(
    ("source", "precision", "compute"),
    [
        (Precision.F32, None, "bf16"),
        (Precision.BF16, "f32", "bf16"),
        (Precision.BF16, None, "int8"),
        (Precision.BF16, "q4", "f32"),
        (Precision.Q8, None, "bf16"),
    ],
)
def test_what_is_refused(source: Precision, precision: str | None, compute: Compute) -> None:
    with pytest.raises(UserError, match=f"--compute {compute}"):
        choose_arithmetics(source, precision, compute)
