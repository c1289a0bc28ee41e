import time
from dataclasses import dataclass

import psutil
import pytest

from tests.deadlines import Meanwhile

PROCESSORS = 2


@dataclass
class Times:
    """Seconds of all processors together, as psutil counts them."""

    user: float = 100.0
    idle: float = 100.0
    iowait: float = 100.0


@pytest.mark.parametrize(
    ("user", "idle", "iowait", "grows"),
    [
        pytest.param(0.0, 20.0, 0.0, 1.0, id="idle"),
        pytest.param(10.0, 10.0, 0.0, 2.0, id="half of it busy"),
        pytest.param(20.0, 0.0, 0.0, 3.0, id="busy"),
        pytest.param(0.0, 0.0, 20.0, 3.0, id="waits for its disk"),
        pytest.param(0.0, 21.0, 0.0, 1.0, id="more than there can be"),
    ],
)
def test_deadline_factor_grows_with_cpu_and_disk_load(
    monkeypatch: pytest.MonkeyPatch, user: float, idle: float, iowait: float, grows: float
) -> None:
    times, now = Times(), [0.0]
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    monkeypatch.setattr(psutil, "cpu_count", lambda: PROCESSORS)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    meanwhile = Meanwhile()
    times = Times(times.user + user, times.idle + idle, times.iowait + iowait)
    now[0] = 10.0
    assert meanwhile.deadline_factor() == pytest.approx(grows)
