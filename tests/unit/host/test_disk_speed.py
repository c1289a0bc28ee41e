import pytest

from tests.deadlines import Meanwhile
from tpiedge.host.disk_speed import measure_disk
from tpiedge.units import MIB


def test_a_disk_is_measured_and_left_as_it_was(tmp_path):
    meanwhile = Meanwhile()
    found = measure_disk(tmp_path, seconds=0.1, nbytes=8 * MIB)
    assert meanwhile.spent_s < 3.0 * meanwhile.deadline_factor()
    assert found.bytes_per_s > 1e5
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_has_no_speed(tmp_path):
    with pytest.raises(OSError):
        measure_disk(tmp_path / "missing")
