"""A part of --shares belongs to a worker by name, whoever comes and goes."""

import re
from dataclasses import replace
from itertools import permutations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.master.test_placement import MODEL, arranged, machine, placement
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.seats import Claim, Seat, Seats, seated
from tpiedge.master.workers import WorkerEvent
from tpiedge.planner.partition import parse_shares
from tpiedge.units import MIB

SHARES = "1,1,2,4"
COUNT = 3
HEAVY_MODEL = replace(MODEL, ffn_tile_bytes=(10 * MIB,) * 3, last_tile_bytes=(10 * MIB,) * 3)
PLACE = placement(weights=parse_shares(SHARES, COUNT + 1), model=HEAVY_MODEL)
ANN_AND_BOB = Seats((Seat("ann"), Seat("bob")))


def here(seats: Seats, *names: str) -> tuple[str, ...]:
    """Who has the seats while these workers are here."""
    return seated(len(seats.seats), {name: seats.claim(name) for name in names})


def test_the_first_that_join_have_the_seats() -> None:
    seats = Seats((Seat(), Seat()))
    for name in ("ann", "bob", "eve", "ann"):
        seats = seats.joined(name)
    assert seats == ANN_AND_BOB
    assert [seats.claim(name) for name in ("ann", "bob", "eve")] == [Claim(False, 0), Claim(False, 1), None]


def test_a_spare_has_the_seat_of_one_that_is_away_and_the_others_keep_theirs() -> None:
    assert here(ANN_AND_BOB, "eve", "bob", "ann") == ("ann", "bob")
    assert here(ANN_AND_BOB, "bob", "eve") == ("eve", "bob")
    assert here(ANN_AND_BOB, "ann", "eve") == ("ann", "eve")
    assert here(ANN_AND_BOB, "ann") == ("ann", "")


def test_who_stands_in_goes_on_whoever_else_is_lost() -> None:
    """bob's seat is lost first and is eve's, so ann's is fay's; in whatever order they come after a restart."""
    seats = ANN_AND_BOB.taken(here(ANN_AND_BOB, "ann", "eve"))
    assert here(seats, "eve", "fay") == ("fay", "eve")
    seats = seats.taken(("fay", "eve"))
    assert here(seats, "fay", "eve") == here(seats, "eve", "fay") == ("fay", "eve")
    assert here(seats, "fay", "eve", "bob") == ("fay", "bob")
    assert here(seats, "fay", "eve", "bob", "ann") == ("ann", "bob")


def test_who_stood_in_and_is_needed_elsewhere_is_there() -> None:
    seats = ANN_AND_BOB.taken(("eve", "bob")).taken(("ann", "bob"))
    assert seats.claim("eve") == Claim(True, 0)
    assert here(seats, "ann", "eve") == ("ann", "eve")
    assert seats.taken(("ann", "eve")) == Seats((Seat("ann"), Seat("bob", "eve")))


def test_the_seat_of_one_that_was_revoked_is_for_good_the_one_s_that_has_it() -> None:
    assert ANN_AND_BOB.taken(("eve", "bob")).without("ann") == Seats((Seat("eve"), Seat("bob")))
    free = ANN_AND_BOB.without("ann")
    assert here(free, "bob", "eve") == ("eve", "bob")
    assert free.taken(("eve", "bob")) == Seats((Seat("eve"), Seat("bob")))
    assert free.joined("fay") == Seats((Seat("fay"), Seat("bob")))
    assert ANN_AND_BOB.taken(("ann", "eve")).without("eve") == ANN_AND_BOB


def test_a_spare_that_gets_a_seat_of_nobody_stands_in_nowhere_any_more() -> None:
    seats = Seats((Seat(), Seat("bob", "eve")))
    assert seats.joined("eve") == seats
    assert seats.taken(("eve", "bob")) == Seats((Seat("eve"), Seat("bob")))


def test_the_plan_gives_each_its_own_weight_and_says_who_has_it() -> None:
    place = placement(weights=parse_shares("1,1,2", 3))
    bob, eve = replace(machine("bob"), claim=Claim(False, 1)), machine("eve")
    found = arranged(place((bob, eve), ()))
    assert found.seats == ("eve", "bob")
    assert {one.machine: len(one.share.ffn) for one in found.assignments} == {"": 4, "eve": 4, "bob": 8}


def test_a_master_that_starts_again_knows_of_those_who_were_revoked_meanwhile() -> None:
    roster = Roster(1.5, ["bob", "eve"], ANN_AND_BOB)
    assert roster.seats == Seats((Seat("eve"), Seat("bob")))
    more = Roster(1.5, ["ann", "bob", "eve"], Seats((*ANN_AND_BOB.seats, Seat())))
    assert more.seats == Seats((Seat("ann"), Seat("bob"), Seat("eve")))


def test_plans_are_made_for_those_with_a_claim_first() -> None:
    """There may be more members than a plan can have."""
    roster = Roster(1.5, ["w-1", "w-2"], Seats((Seat("w-2"),)))
    for name in ("w-1", "w-2"):
        roster.offered(name, machine(name).offer, 0.0)
    assert [(one.name, one.claim) for one in roster.present] == [("w-2", Claim(False, 0)), ("w-1", None)]


def small(name: str, claim: Claim | None = None, memory_bytes: int = 500 * MIB) -> Machine:
    """A worker whose memory holds a quarter of the layers that `HEAVY` has, and no half."""
    found = machine(name)
    return replace(found, offer=replace(found.offer, memory_bytes=memory_bytes), claim=claim)


def test_who_offers_too_little_for_its_seat_counts_as_away() -> None:
    """Its owner came back with less memory while the master was away, and would be waited for as long as it stays."""
    seats = ANN_AND_BOB.taken(("ann", "eve"))
    claims = {name: seats.claim(name) for name in ("ann", "bob", "eve")}
    assert seated(2, claims, lambda name, _seat: name != "bob") == ("ann", "eve")
    assert seated(2, claims) == ("ann", "bob")
    of_joined = {name: ANN_AND_BOB.claim(name) for name in ("ann", "bob", "eve")}
    assert seated(2, of_joined, lambda name, _seat: name != "ann") == ("eve", "bob")


def test_workers_change_seats_where_a_seat_would_stay_empty_otherwise() -> None:
    seats = Seats((Seat("ann"), Seat("bob", "eve"), Seat("cid")))
    claims = {name: seats.claim(name) for name in ("eve", "fay", "cid", "ann")}
    large = {"ann", "eve"}

    def fits(name: str, seat: int) -> bool:
        return name in large or seat == 1

    assert seated(3, claims, fits) == ("ann", "fay", "eve"), "who only stands in changes its seat first"
    assert seated(3, {**claims, "bob": seats.claim("bob")}, fits) == ("ann", "bob", "eve")
    assert not all(seated(3, {name: claims[name] for name in ("fay", "cid", "ann")}, fits))


def test_an_owner_that_stands_in_for_another_stands_in_the_table_once() -> None:
    assert ANN_AND_BOB.taken(("eve", "ann")) == Seats((Seat("ann", "eve"), Seat("bob")))
    assert Seats((Seat("ann"), Seat())).taken(("eve", "ann")) == Seats((Seat("ann", "eve"), Seat()))


def test_who_stands_in_elsewhere_while_an_owner_has_its_seat_stands_in_the_table_once() -> None:
    """cid stood in for eve, came back with too little for that seat, and has ann's, who has eve's."""
    seats = Seats((Seat("ann"), Seat("bob"), Seat("eve", "cid")))
    assert seats.taken(("cid", "bob", "ann")) == Seats((Seat("ann", "cid"), Seat("bob"), Seat("eve")))


HEAVY = placement(weights=parse_shares("1,1,2", 3), model=HEAVY_MODEL)


def test_a_fit_spare_has_the_seat_of_one_with_too_little_memory_which_is_told_what_is_lacking() -> None:
    ann, bob = replace(machine("ann"), claim=Claim(False, 0)), small("bob", Claim(False, 1))
    eve = machine("eve")
    found = arranged(HEAVY((ann, bob, eve), ()))
    assert found.seats == ("ann", "eve")
    reason = found.spare["bob"]
    assert reason.kind == "no room", "the worker stays, and is taken in as soon as it offers more"
    assert "it offers 524.3 MB, but its part of --shares needs" in reason.why
    assert "start it again with --memory" in reason.why
    least = re.search(r"--memory ([\d.]+)MB", reason.why)
    assert least
    enough = small("bob", Claim(False, 1), int(float(least[1]) * 1e6))
    assert arranged(HEAVY((ann, enough, eve), ())).seats == ("ann", "bob")


def test_a_worker_that_is_too_small_for_its_own_part_may_have_a_smaller_one() -> None:
    bob, eve = small("bob", Claim(False, 1)), machine("eve")
    assert arranged(HEAVY((bob, eve), ())).seats == ("bob", "eve")


def test_a_worker_whose_disk_is_too_small_for_its_part_counts_as_away_as_well() -> None:
    ann, bob, eve = machine("ann"), machine("bob"), machine("eve")
    full = replace(bob, offer=replace(bob.offer, free_disk_bytes=8 * MIB), claim=Claim(False, 1))
    found = arranged(HEAVY((replace(ann, claim=Claim(False, 0)), full, eve), ()))
    assert found.seats == ("ann", "eve")
    assert found.spare["bob"].why.startswith("for its part of --shares it needs")


def test_where_no_spare_is_fit_the_refusal_names_who_offers_too_little() -> None:
    ann, bob = small("ann", Claim(False, 0)), small("bob", Claim(False, 1))
    found = HEAVY((ann, bob, small("eve")), ())
    assert isinstance(found, NoPlan)
    assert "bob needs at least" in found.reason


def test_after_a_restart_the_spare_has_the_part_of_one_that_returned_with_too_little() -> None:
    """In whatever order they come."""
    for order in permutations(("ann", "bob", "eve")):
        roster = Roster(1.5, ["ann", "bob", "eve"], ANN_AND_BOB)
        for name in order:
            roster.offered(name, (small(name) if name == "bob" else machine(name)).offer, 0.0)
        found = arranged(HEAVY(roster.present, ()))
        assert found.seats == ("ann", "eve")
        roster.take_seats(found.seats)
        assert roster.seats == Seats((Seat("ann"), Seat("bob", "eve")))
        roster.offered("bob", machine("bob").offer, 1.0)
        assert arranged(HEAVY(roster.present, ())).seats == ("ann", "bob")


NAMES = st.sampled_from(["ann", "bob", "cid", "eve", "fay", "gus"])


class Comings(RuleBasedStateMachine):
    """Workers leave, return, are drained and revoked, and masters are started again."""

    def __init__(self) -> None:
        super().__init__()
        self.members: list[str] = []
        self.drained: set[str] = set()
        self.roster = Roster(1.5, (), Seats((Seat(),) * COUNT))
        self.had: dict[str, int] = {}
        self.amounts: dict[str, int] = {}
        #: Who offered too little for the last seat when that plan was made.
        self.had_less: set[str] = set()

    def _let_in(self, name: str) -> None:
        if name not in self.members:
            self.members.append(name)
            self.roster.expect(name)

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        self._let_in(name)

    @rule(name=NAMES, has_less=st.booleans())
    def come(self, name: str, has_less: bool) -> None:
        """Some have memory for the smaller two parts only."""
        self._let_in(name)
        self.roster.offered(name, (small if has_less else machine)(name).offer, 0.0)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.roster.lose(name, "cut off", 0.0)

    @rule(name=NAMES, drained=st.booleans())
    def drain(self, name: str, drained: bool) -> None:
        self.roster.step(name, WorkerEvent.DRAINED if drained else WorkerEvent.UNDRAINED, 0.0)

    @rule(name=NAMES)
    def revoke(self, name: str) -> None:
        if name in self.members:
            self.members.remove(name)
            self.roster.forget(name)
            self.had.pop(name, None)  # who joins again has lost its part

    @rule(order=st.permutations(["ann", "bob", "cid", "eve", "fay", "gus"]), revoked=st.none() | NAMES)
    def restart(self, order: list[str], revoked: str | None) -> None:
        """Nobody, or somebody, is revoked meanwhile; those that were here come back in any order."""
        present = {one.name for one in self.roster.present}
        if revoked in self.members:
            self.members.remove(revoked)
            self.had.pop(revoked, None)
        self.roster = Roster(1.5, self.members, self.roster.seats)
        for name in order:
            if name in present and name in self.members:
                self.come(name, order[0] < name)

    @precondition(lambda self: self.had)
    @rule(name=NAMES)
    def foresee(self, name: str) -> None:
        """The plan for a loss is the one that is made when it comes, whatever was planned meanwhile."""
        left = tuple(one for one in self._able() if one.name != name)
        foreseen = PLACE(left, ())
        self.laws()
        self.roster.lose(name, "cut off", 0.0)
        found = PLACE(tuple(self._able()), ())
        if isinstance(found, Assignments):
            assert isinstance(foreseen, Assignments)
            assert found.seats == foreseen.seats

    def _able(self) -> list:
        return [one for one in self.roster.present if not one.drained]

    @invariant()
    def laws(self) -> None:
        able = {one.name for one in self._able()}
        owners = [seat.owner for seat in self.roster.seats.seats]
        assert len(set(self.roster.seats.names)) == len(self.roster.seats.names)
        assert set(self.roster.seats.names) <= set(self.members)
        less = {
            one.name for one in self._able() if one.offer.memory_bytes == small(one.name).offer.memory_bytes
        }
        served = [one for one in permutations(able, COUNT) if one[COUNT - 1] not in less]
        found = PLACE(tuple(self._able()), ())
        assert isinstance(found, Assignments) == bool(served)
        if not isinstance(found, Assignments):
            return
        fit = {number: name for number, name in enumerate(owners) if number < COUNT - 1 or name not in less}
        keeping = any(
            all(one[number] == name for number, name in fit.items() if name in able) for one in served
        )
        now = {name: number for number, name in enumerate(found.seats)}
        amounts = {one.machine: len(one.share.ffn) for one in found.assignments}
        for number, owner in enumerate(owners):
            if keeping and owner in able and fit.get(number) == owner:
                assert now[owner] == number, "each that is here has its own"
        for name, number in self.had.items():
            if name in able and now.get(name) != number:
                assert less | self.had_less or owners[number] in able, (
                    "only to its owner a seat is given back"
                )
            elif name in able:
                assert amounts[name] == self.amounts[name]
        self.roster.take_seats(found.seats)
        assert arranged(PLACE(tuple(self._able()), ())).seats == found.seats, "that changes no plan"
        self.had, self.amounts, self.had_less = now, amounts, less


TestComings = Comings.TestCase
