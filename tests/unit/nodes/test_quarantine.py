"""How long who is left out, as a story of offences and times."""

from tpiedge.nodes.quarantine import FIRST_S, FLOOD, FORGIVEN_S, LONGEST_S, Quarantine, Traffic


def test_every_offence_costs_twice_as_much_up_to_a_limit() -> None:
    quarantine, now, lengths = Quarantine(), 5.0, []
    for _ in range(9):
        until = quarantine.convict("w-1", now)
        lengths.append(until - now)
        now = until
    assert lengths[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert lengths[-1] == lengths[-2] == LONGEST_S


def test_offences_while_it_is_out_are_one() -> None:
    quarantine = Quarantine()
    until = quarantine.convict("w-1", 0.0)
    assert quarantine.convict("w-1", FIRST_S / 2) == until


def test_nobody_pays_for_another() -> None:
    quarantine = Quarantine()
    quarantine.convict("w-1", 0.0)
    quarantine.convict("w-1", FIRST_S)
    assert quarantine.convict("w-2", FIRST_S) == 2 * FIRST_S


def test_a_long_time_of_good_conduct_and_a_revocation_wipe_the_slate_clean() -> None:
    quarantine = Quarantine()
    quarantine.convict("w-1", 0.0)
    later = FIRST_S + FORGIVEN_S
    assert quarantine.convict("w-1", later) == later + FIRST_S
    quarantine.forget("w-1")
    quarantine.forget("w-9")
    assert quarantine.convict("w-1", later) == later + FIRST_S


def test_a_flood_is_found_once_between_two_heartbeats() -> None:
    traffic = Traffic()
    assert sum(traffic.floods("w-1") for _ in range(3 * FLOOD)) == 1
    assert not traffic.floods("w-2")
    traffic.tick()
    assert not any(traffic.floods("w-1") for _ in range(FLOOD - 1))
    assert traffic.floods("w-1")
