"""A part of --shares belongs to a worker by name, whoever comes and goes."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.master.test_placement import arranged, machine, placement
from tpiedge.master.assignments import Assignments
from tpiedge.master.roster import Roster
from tpiedge.master.seats import Claim, Seat, Seats, seated
from tpiedge.planner.partition import parse_shares

SHARES = "1,1,2,4"
COUNT = 3
PLACE = placement(weights=parse_shares(SHARES, COUNT + 1))
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

    def _let_in(self, name: str) -> None:
        if name not in self.members:
            self.members.append(name)
            self.roster.expect(name)

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        self._let_in(name)

    @rule(name=NAMES)
    def come(self, name: str) -> None:
        self._let_in(name)
        self.roster.offered(name, machine(name).offer, 0.0)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.roster.lose(name, "cut off")

    @rule(name=NAMES, drained=st.booleans())
    def drain(self, name: str, drained: bool) -> None:
        self.roster.drain(name, drained)

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
                self.roster.offered(name, machine(name).offer, 0.0)

    @precondition(lambda self: self.had)
    @rule(name=NAMES)
    def foresee(self, name: str) -> None:
        """The plan for a loss is the one that is made when it comes, whatever was planned meanwhile."""
        left = tuple(one for one in self._able() if one.name != name)
        foreseen = PLACE(left, ())
        self.laws()
        self.roster.lose(name, "cut off")
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
        found = PLACE(tuple(self._able()), ())
        assert isinstance(found, Assignments) == (len(able) >= COUNT)
        if not isinstance(found, Assignments):
            return
        now = {name: number for number, name in enumerate(found.seats)}
        amounts = {one.machine: len(one.share.ffn) for one in found.assignments}
        for number, owner in enumerate(owners):
            assert owner not in able or now[owner] == number, "each that is here has its own"
        for name, number in self.had.items():
            if name in able and now.get(name) != number:
                assert owners[number] in able, "only to its owner a seat is given back"
            elif name in able:
                assert amounts[name] == self.amounts[name]
        self.roster.take_seats(found.seats)
        assert arranged(PLACE(tuple(self._able()), ())).seats == found.seats, "that changes no plan"
        self.had, self.amounts = now, amounts


TestComings = Comings.TestCase
