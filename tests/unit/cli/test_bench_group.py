"""Where there are no control groups, or none that limit memory, this is said."""

from pathlib import Path

import pytest

from tpiedge.cli.bench_group import memory_group
from tpiedge.errors import UserError


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this system has none"), memory_group(1 << 20, tmp_path):
        pytest.fail("there is no group")
