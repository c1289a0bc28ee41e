import pytest

from tpiedge.wire.codec import encode
from tpiedge.wire.data import LinkReport, MeasuredLink
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.fields import MAX_BLOB
from tpiedge.wire.probing import LinkSpeed, Probing


def measure(trips: list[float], payload: int = MAX_BLOB) -> LinkSpeed:
    probing, now = Probing(), 100.0
    step: Probe | LinkSpeed | None = probing.next_probe(now)
    for trip in trips:
        assert isinstance(step, Probe)
        now += trip
        step = probing.receive(Echo(0, step.number, bytes(min(step.answer_bytes, payload))), now)
    assert isinstance(step, LinkSpeed)
    return step


def test_link_speed_uses_shortest_echo_and_payload_delay() -> None:
    link = measure([0.02, 0.01, 0.5, 0.03, 0.02, 0.11])
    assert link.round_trip_s == pytest.approx(0.01)
    assert link.bytes_per_s == pytest.approx(MAX_BLOB / 0.1)


def test_noisy_echoes_cap_the_measured_rate() -> None:
    """The payload was no slower than empty echoes that waited for a processor."""
    link = measure([0.011, 0.001, 0.004, 0.006, 0.002, 0.001])
    assert link.bytes_per_s == pytest.approx(MAX_BLOB / 0.003)


@pytest.mark.parametrize(("payload", "rate"), [(1, 1.0), (MAX_BLOB, MAX_BLOB / 1000)])
def test_rate_of_very_slow_payload_can_be_encoded(payload: int, rate: float) -> None:
    link = measure([0.01] * 5 + [1000.01], payload)
    assert link.bytes_per_s == pytest.approx(rate)
    encode(LinkReport(1, 1, "h", 4, (MeasuredLink(0, link.round_trip_s, link.bytes_per_s),)))


def test_fastest_of_several_payloads_counts() -> None:
    """The first payloads of an idle connection are slow."""
    probing, now = Probing(payload_bytes=1000, payloads=3, epoch=7), 0.0
    step: Probe | LinkSpeed | None = probing.next_probe(now)
    sizes = []
    for trip in [0.01] * 5 + [0.5, 0.02, 0.03]:
        assert isinstance(step, Probe)
        assert step.epoch == 7
        sizes.append(step.answer_bytes)
        now += trip
        step = probing.receive(Echo(7, step.number, bytes(step.answer_bytes)), now)
    assert sizes == [0] * 5 + [1000] * 3
    assert isinstance(step, LinkSpeed)
    assert step.round_trip_s == pytest.approx(0.01)
    assert step.bytes_per_s == pytest.approx(1000 / 0.01)


def test_duplicate_echo_is_ignored() -> None:
    probing = Probing(payload_bytes=10, payloads=2)
    probing.next_probe(0.0)
    for number in range(1, 6):
        probing.receive(Echo(0, number, b""), 1.0)
    assert isinstance(probing.receive(Echo(0, 6, bytes(10)), 2.0), Probe)
    assert probing.receive(Echo(0, 6, bytes(10)), 3.0) is None
    assert isinstance(probing.receive(Echo(0, 7, bytes(10)), 4.0), LinkSpeed)
