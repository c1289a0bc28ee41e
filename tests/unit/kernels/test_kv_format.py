import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.kernels.kv_format import KVFormat
from tpiedge.wire.fields import KVPrecision

PRECISIONS: list[KVPrecision] = ["f32", "bf16", "q8", "q4"]
COUNTS = range(64, 513, 64)


def padding(format_: KVFormat, positions: int) -> float:
    used = 2 * positions * format_.row_nbytes
    return -used % 4096 / (used + -used % 4096)


@given(st.sampled_from(PRECISIONS), st.integers(1, 512))
def test_a_page_is_whole_and_as_small_as_it_can_be(precision: KVPrecision, width: int) -> None:
    format_ = KVFormat(precision, width)
    positions = format_.page_positions
    assert positions in COUNTS
    assert format_.part_nbytes % 4096 == 0
    assert 0 <= format_.part_nbytes - 2 * positions * format_.row_nbytes < 4096
    if padding(format_, positions) > 1 / 16:
        assert all(padding(format_, count) >= padding(format_, positions) for count in COUNTS)
    else:
        assert all(padding(format_, count) > 1 / 16 for count in COUNTS if count < positions)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_how_many_pages_positions_take(precision: KVPrecision) -> None:
    format_ = KVFormat(precision, 128)
    size = format_.page_positions
    assert [format_.pages_of(count) for count in (0, 1, size, size + 1)] == [0, 1, 1, 2]
