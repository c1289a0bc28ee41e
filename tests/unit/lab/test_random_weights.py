import numpy as np
import pytest

from tpiedge.errors import UserError
from tpiedge.lab.random_weights import STD, RandomSource, random_rows, random_vector
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("cols", [60, 700])
def test_any_tiling_gives_the_same_tensor(dtype: str, cols: int) -> None:
    whole = random_rows(3, "w", 0, 50, cols, dtype)  # type: ignore[arg-type]
    tile = random_rows(3, "w", 17, 9, 11, dtype, first_col=40)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        tile.view(np.uint8), np.ascontiguousarray(whole[17:26, 40:51]).view(np.uint8)
    )


def test_seed_and_name_matter() -> None:
    base = random_rows(3, "w", 0, 4, 64, "F32")
    assert not np.array_equal(base, random_rows(4, "w", 0, 4, 64, "F32"))
    assert not np.array_equal(base, random_rows(3, "x", 0, 4, 64, "F32"))


def test_bf16_is_the_f32_rounded() -> None:
    f32 = random_rows(3, "w", 5, 20, 300, "F32")
    np.testing.assert_array_equal(random_rows(3, "w", 5, 20, 300, "BF16"), bf16_from_f32(f32))


def test_the_numbers_look_normal_and_rows_are_unrelated() -> None:
    rows = f32_from_bf16(random_rows(1, "w", 0, 400, 1024, "BF16"))
    assert abs(float(rows.mean())) < 1e-3
    assert float(rows.std()) == pytest.approx(STD, rel=0.05)
    correlation = np.corrcoef(rows) - np.eye(400)
    assert np.abs(correlation).max() < 0.25


def test_no_two_rows_of_a_large_vocabulary_are_equal() -> None:
    rows = random_rows(1, "lm_head.weight", 0, 150_000, 8, "F32")
    assert len(np.unique(np.abs(rows), axis=0)) == len(rows)


def test_vectors_are_norms_or_biases() -> None:
    norm = random_vector(1, "model.norm.weight", 500, "F32")
    bias = random_vector(1, "q_proj.bias", 500, "F32")
    assert abs(float(norm.mean()) - 1) < 0.01
    assert abs(float(bias.mean())) < 0.01


def test_a_source_knows_only_its_tensors() -> None:
    source = RandomSource(1, {"w": (4, 6)}, "F32")
    np.testing.assert_array_equal(source.read_columns("w", 2, 3), source.read_rows("w", 0, 4)[:, 2:5])
    np.testing.assert_array_equal(source.read_block("w", 1, 2, 3, 2), source.read_rows("w", 1, 2)[:, 3:5])
    with pytest.raises(UserError, match="no tensor nope"):
        source.read_rows("nope", 0, 1)
    with pytest.raises(UserError, match="rows of at most"):
        random_rows(1, "w", 0, 1, 1 << 20, "F32")
