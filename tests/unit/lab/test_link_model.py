"""Links as arithmetic: whatever is sent when, the laws of a link hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.link_model import LinkModel, LinkSettings, PathModel

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


@given(_LINKS, _SENDS)
def test_an_idle_link_adds_at_most_its_jitter(settings: LinkSettings, gaps: list[tuple[int, int]]) -> None:
    now_ns, nbytes = _sent(gaps)[0]
    for _, at_ns, _ in _arrivals(LinkModel(settings), gaps[:1]):
        transmission_s = 0 if settings.bytes_per_s is None else nbytes / settings.bytes_per_s
        assert at_ns - now_ns <= (settings.latency_s + settings.jitter_s + transmission_s) * 1e9 + 2


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


@given(st.builds(LinkSettings, bytes_per_s=_RATES, queue_bytes=st.integers(0, 1 << 20)), _SENDS)
def test_no_more_than_the_queue_waits(settings: LinkSettings, gaps: list[tuple[int, int]]) -> None:
    rate, queue_bytes = settings.bytes_per_s or 0.0, settings.queue_bytes or 0
    for now_ns, at_ns, nbytes in _arrivals(LinkModel(settings), gaps):
        assert at_ns - now_ns <= max(queue_bytes, nbytes) / rate * 1e9 + 2


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


def test_what_waited_for_a_rate_waits_for_no_limit() -> None:
    link = LinkModel(LinkSettings(bytes_per_s=1e3))
    assert link.arrival(0.0, 1000) == 1.0
    link.change(LinkSettings(latency_s=0.001, jitter_s=0.001), 0.5)
    assert 0.501 <= (link.arrival(0.5, 1000) or 0.0) <= 0.502
    link.change(LinkSettings(bytes_per_s=1e3), 0.6)
    assert link.arrival(0.6, 1000) == 1.6


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


@given(_LINKS, _SENDS, _SENDS)
def test_a_change_to_the_same_changes_nothing(
    settings: LinkSettings, gaps: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    changed, kept = LinkModel(settings), LinkModel(settings)
    assert _arrivals(changed, gaps) == _arrivals(kept, gaps)
    now_ns = _sent(gaps)[-1][0]
    changed.change(settings, now_ns / 1e9)
    for gap_ns, nbytes in more:
        now_ns += gap_ns
        assert changed.arrival_ns(now_ns, nbytes) == kept.arrival_ns(now_ns, nbytes)


def test_paths_that_meet_on_a_plain_link_do_not_wait_for_each_other() -> None:
    core = LinkModel(LinkSettings(latency_s=0.001))
    far = PathModel([LinkModel(LinkSettings(latency_s=0.1)), core])
    near = PathModel([LinkModel(LinkSettings()), core])
    assert (far.arrival_ns(0, 1000), near.arrival_ns(0, 1000)) == (101 * _MS, 1 * _MS)


def test_an_idle_link_takes_what_is_larger_than_its_queue() -> None:
    link = LinkModel(LinkSettings(bytes_per_s=1e6, queue_bytes=10))
    assert link.arrival(0.0, 5000) == 0.005
    assert link.arrival(0.005, 5000) == 0.01


@given(_LINKS, _SENDS, st.integers(0, 1 << 64))
def test_the_same_seed_gives_the_same(settings: LinkSettings, gaps: list[tuple[int, int]], seed: int) -> None:
    assert _arrivals(LinkModel(settings, seed), gaps) == _arrivals(LinkModel(settings, seed), gaps)


def test_other_seeds_lose_others() -> None:
    settings = LinkSettings(loss=0.5)
    assert {LinkModel(settings, seed).arrival(0.0, 1) is None for seed in range(64)} == {True, False}


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


def test_paths_that_share_a_link_share_its_rate() -> None:
    core = LinkModel(LinkSettings(bytes_per_s=1e6))
    one, other = PathModel([LinkModel(LinkSettings()), core]), PathModel([LinkModel(LinkSettings()), core])
    assert (one.arrival_ns(0, 1000), other.arrival_ns(0, 1000)) == (1 * _MS, 2 * _MS)


@given(st.lists(_LINKS, max_size=4), _SENDS)
def test_nothing_overtakes_on_a_path(links: list[LinkSettings], gaps: list[tuple[int, int]]) -> None:
    path = PathModel([LinkModel(settings, seed) for seed, settings in enumerate(links)])
    arrived = _arrivals(path, gaps)
    times = [at_ns for _, at_ns, _ in arrived]
    assert times == sorted(times)
    least_ns = sum(round(settings.latency_s * 1e9) for settings in links)
    assert all(at_ns - now_ns >= least_ns for now_ns, at_ns, _ in arrived)
