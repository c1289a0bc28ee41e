"""Links as arithmetic: whatever is sent when, the laws of a link hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shaped_links import LinkModel, LinkSettings, PathModel

_MS = 10**6
_DELAYS = st.floats(0, 0.05)
_RATES = st.floats(1e3, 1e9)
_QUEUES = st.none() | st.integers(0, 1 << 20)
_LINKS = st.builds(LinkSettings, _DELAYS, _DELAYS, st.floats(0, 1), st.none() | _RATES, _QUEUES)
_SENDS = st.lists(st.tuples(st.integers(0, 50 * _MS), st.integers(0, 1 << 17)), min_size=1, max_size=60)


def _sent(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Times and sizes, from the gaps between them."""
    now_ns, sends = 0, []
    for gap_ns, nbytes in gaps:
        now_ns += gap_ns
        sends.append((now_ns, nbytes))
    return sends


def _arrivals(link: LinkModel | PathModel, gaps: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """When sent, when arrived and the size, of all that arrived."""
    results = [(now_ns, link.arrival_ns(now_ns, nbytes), nbytes) for now_ns, nbytes in _sent(gaps)]
    return [(now_ns, at_ns, nbytes) for now_ns, at_ns, nbytes in results if at_ns is not None]


@given(_LINKS, _SENDS, st.integers(0, 1 << 64))
def test_nothing_overtakes(settings: LinkSettings, gaps: list[tuple[int, int]], seed: int) -> None:
    times = [at_ns for _, at_ns, _ in _arrivals(LinkModel(settings, seed), gaps)]
    assert times == sorted(times)


@given(_LINKS, _SENDS, st.integers(0, 1 << 64))
def test_nothing_is_faster_than_latency_and_rate(
    settings: LinkSettings, gaps: list[tuple[int, int]], seed: int
) -> None:
    for now_ns, at_ns, nbytes in _arrivals(LinkModel(settings, seed), gaps):
        transmission_s = 0 if settings.bytes_per_s is None else nbytes / settings.bytes_per_s
        assert at_ns - now_ns >= (settings.latency_s + transmission_s) * 1e9 - 1


@given(st.builds(LinkSettings, bytes_per_s=_RATES, latency_s=_DELAYS, queue_bytes=_QUEUES), _SENDS)
def test_no_interval_carries_more_than_the_rate(settings: LinkSettings, gaps: list[tuple[int, int]]) -> None:
    arrived = _arrivals(LinkModel(settings), gaps)
    rate = settings.bytes_per_s or 0.0
    for first in range(len(arrived)):
        for last in range(first + 1, len(arrived)):
            # What arrives within, but for the one whose arrival opens it; a nanosecond of rounding for each.
            nbytes = sum(size for _, _, size in arrived[first + 1 : last + 1])
            within_ns = arrived[last][1] - arrived[first][1] + last - first
            assert nbytes <= rate * within_ns / 1e9 + 1e-6 * nbytes


def test_a_full_queue_drops_until_there_is_room() -> None:
    link = LinkModel(LinkSettings(bytes_per_s=1e6, queue_bytes=2000))
    assert [link.arrival_ns(0, 1000) for _ in range(3)] == [1 * _MS, 2 * _MS, None]
    assert link.arrival_ns(1 * _MS, 1000) == 3 * _MS


def test_at_another_rate_as_many_bytes_wait_as_before() -> None:
    link = LinkModel(LinkSettings(bytes_per_s=1e3, queue_bytes=200_000))
    assert link.arrival(0.0, 200_000) == 200.0
    link.change(LinkSettings(bytes_per_s=2e3, queue_bytes=200_000), 100.0)
    assert link.arrival(100.0, 2000) == 151.0
    link.change(LinkSettings(bytes_per_s=37.5e6, queue_bytes=200_000), 100.0)
    assert 100.0 < (link.arrival(100.0, 1500) or 0.0) < 100.01


@given(_LINKS, _LINKS, _SENDS, st.integers(0, 100 * _MS), st.integers(1, 1 << 17))
def test_a_change_holds_nothing_back_longer_than_it_explains(
    before: LinkSettings, after: LinkSettings, gaps: list[tuple[int, int]], later_ns: int, nbytes: int
) -> None:
    link = LinkModel(before, 1)
    _arrivals(link, gaps)
    now_ns = _sent(gaps)[-1][0] + later_ns
    link.change(after, now_ns / 1e9)
    at_ns = link.arrival_ns(now_ns, nbytes)
    if at_ns is not None:
        waiting = sum(size for _, size in gaps) + nbytes
        transmission_s = 0.0 if after.bytes_per_s is None else waiting / after.bytes_per_s
        explained_ns = (after.latency_s + after.jitter_s + transmission_s) * 1e9
        assert at_ns - now_ns <= explained_ns * (1 + 1e-9) + len(gaps) + 5


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.3, 1.0])
def test_as_many_are_lost_as_it_says(loss: float) -> None:
    count = 20_000
    link = LinkModel(LinkSettings(loss=loss), seed=7)
    lost = sum(link.arrival(0.0, 100) is None for _ in range(count))
    assert abs(lost - loss * count) <= 5 * (count * loss * (1 - loss)) ** 0.5


def test_jitter_is_uniform() -> None:
    link = LinkModel(LinkSettings(latency_s=0.001, jitter_s=0.004), seed=3)
    # Far apart, so that none waits for the one before.
    late_ns = sorted((link.arrival_ns(i * 10**9, 1) or 0) - i * 10**9 - _MS for i in range(4000))
    assert late_ns[0] >= 0
    assert late_ns[-1] < 4 * _MS
    assert [late_ns[1000 * i] / _MS for i in (1, 2, 3)] == pytest.approx([1, 2, 3], abs=0.15)


def test_a_path_passes_on_what_it_has_whole() -> None:
    slow = LinkSettings(latency_s=0.001, bytes_per_s=1e6)
    path = PathModel([LinkModel(slow), LinkModel(LinkSettings(latency_s=0.002)), LinkModel(slow)])
    assert path.latency_s == 0.004
    assert path.arrival_ns(0, 1000) == 6 * _MS
    # The second follows the first at the distance of the rate.
    assert path.arrival_ns(0, 1000) == 7 * _MS
