"""One machine less, one machine more."""

from dataclasses import replace

from tests.unit.master.test_placement import machine, placement
from tpiedge.master.foresight import with_another, without
from tpiedge.units import MIB
from tpiedge.wire.probing import LinkSpeed

LINK = LinkSpeed(1e-6, 1e12)
TWO = [machine("w-1", LINK), machine("w-2", LINK)]


def test_fewer_are_slower_and_more_are_faster() -> None:
    less, more = without(placement(), TWO, "w-2"), with_another(placement(), TWO)
    assert less.now_s is not None
    assert less.then_s is not None
    assert more.then_s is not None
    assert more.then_s < less.now_s < less.then_s
    assert (less.machines, less.takes_part, less.why) == (2, True, "")
    assert (more.machines, more.takes_part, more.now_s) == (4, True, less.now_s)


def test_who_cannot_be_spared() -> None:
    found = without(placement(min_workers=2), TWO, "w-1")
    assert (found.then_s, found.machines) == (None, 0)
    assert "1 of 2 workers" in found.why
    assert found.takes_part


def test_one_that_would_be_a_spare() -> None:
    far = replace(TWO[1], link=LinkSpeed(1.0, 1e3))
    assert not with_another(placement(), [TWO[0], far]).takes_part
    assert not without(placement(), [TWO[0], far], "w-2").takes_part


def test_one_more_may_be_what_is_missing() -> None:
    short = placement(memory_bytes=400 * MIB, min_workers=3)
    found = with_another(short, TWO)
    assert found.now_s is None
    assert found.then_s is not None
