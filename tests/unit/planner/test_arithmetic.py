import pytest

from tpiedge.errors import UserError
from tpiedge.pack.layout import Storage
from tpiedge.pack.specs import Precision
from tpiedge.planner import arithmetic
from tpiedge.planner.arithmetic import check_compute, check_native, computed_apart, usual_compute
from tpiedge.wire.fields import Compute

GOES = {
    Precision.F32: {"f32"},
    Precision.BF16: {"f32", "bf16"},
}


@pytest.mark.parametrize("compute", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("stored", GOES)
def test_incompatible_compute_and_precision_are_refused(stored: Precision, compute: Compute) -> None:
    if compute in GOES.get(stored, {"f32", "int8"}):
        return check_compute(stored, compute)
    with pytest.raises(UserError) as refused:
        check_compute(stored, compute)
    words = str(refused.value)
    assert f"--compute {compute}" in words
    assert "\n" not in words
    assert any(remedy in words for remedy in ("add --precision", "leave --compute out"))


@pytest.mark.parametrize("layers", [Precision.Q8, Precision.Q4])
def test_parts_that_differ_between_machines_are_named(layers: Precision) -> None:
    usual = Storage.of(layers, tied=False)
    assert computed_apart(usual, 512) == ""
    assert computed_apart(usual, 514) == "attention heads of 514 columns, more than 512"
    for head in (Precision.BF16, Precision.F32):
        stored = Storage.of(layers, tied=False, head=head)
        assert computed_apart(stored, 64) == f"a head kept in {head.value}"


@pytest.mark.parametrize(
    ("stored", "kv", "words"),
    [
        (Precision.F32, "f32", ""),
        (Precision.BF16, "bf16", ""),
        (Precision.Q4, "bf16", "weights in q4{}--precision bf16 (or --compute f32)"),
        (Precision.BF16, "q8", "keys and values in q8{}--kv-precision bf16"),
        (
            Precision.Q8,
            "q4",
            "weights in q8 and keys and values in q4{}--precision bf16 (or --compute f32) and --kv-precision bf16",
        ),
    ],
)
def test_quantised_precisions_need_native_kernels(stored, kv, words, monkeypatch):
    monkeypatch.setattr(arithmetic, "why_missing", lambda: "")
    check_native(stored, usual_compute(stored), kv)
    monkeypatch.setattr(arithmetic, "why_missing", lambda: "are gone")
    check_native(stored, "f32", "f32")
    if not words:
        return check_native(stored, usual_compute(stored), kv)
    with pytest.raises(UserError) as refused:
        check_native(stored, usual_compute(stored), kv)
    assert str(refused.value) == words.format(" need native kernels, which are gone; or choose ")
