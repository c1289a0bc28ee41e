import numpy as np
import pytest

from tpiedge.lab.random_weights import STD, random_rows
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("cols", [60, 700])
def test_any_tiling_gives_the_same_tensor(dtype: str, cols: int) -> None:
    whole = random_rows(3, "w", 0, 50, cols, dtype)  # type: ignore[arg-type]
    tile = random_rows(3, "w", 17, 9, 11, dtype, first_col=40)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        tile.view(np.uint8), np.ascontiguousarray(whole[17:26, 40:51]).view(np.uint8)
    )


def test_bf16_is_the_f32_rounded() -> None:
    f32 = random_rows(3, "w", 5, 20, 300, "F32")
    np.testing.assert_array_equal(random_rows(3, "w", 5, 20, 300, "BF16"), bf16_from_f32(f32))


def test_weights_are_normal_and_rows_uncorrelated() -> None:
    rows = f32_from_bf16(random_rows(1, "w", 0, 400, 1024, "BF16"))
    assert abs(float(rows.mean())) < 1e-3
    assert float(rows.std()) == pytest.approx(STD, rel=0.05)
    correlation = np.corrcoef(rows) - np.eye(400)
    assert np.abs(correlation).max() < 0.25
