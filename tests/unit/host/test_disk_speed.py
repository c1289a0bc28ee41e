import pytest

from tests.deadlines import Meanwhile
from tpiedge.host.disk_speed import measure_disk
from tpiedge.units import MIB


def test_disk_measurement_leaves_no_files(tmp_path):
    meanwhile = Meanwhile()
    found = measure_disk(tmp_path, seconds=0.1, nbytes=8 * MIB)
    assert meanwhile.spent_s < 3.0 * meanwhile.deadline_factor()
    assert found.bytes_per_s > 1e5
    assert list(tmp_path.iterdir()) == []


def test_disk_measurement_of_a_missing_folder_fails(tmp_path):
    with pytest.raises(OSError):
        measure_disk(tmp_path / "missing")
