"""How much memory a machine gives while it is used: a state machine without clock, files or sockets.

Laws:
1. What is offered exceeds what the machine may use by less than a PART of the offer: where it would not, it offers less
   at once.
2. Where it may use more by a PART, it offers more once that has been so for SETTLED_S.
3. A node that ran out of memory though the machine may use all that the plan gave it shows that this is too much: for
   FIRST_S the machine offers the part LESS of it, the next time for AGAIN times as long, up to LONGEST_S. Where none
   ran out for LONGEST_S after that, it starts anew.
4. A node that was planned with more than the machine offers or may use by now shows nothing, and then what may be used
   is offered, however little it is below the offer.
5. While the limit is higher than at such an end, the machine may offer more before the time is over.
6. Where nothing can be done with so little, all that may be used is offered in spite of such an end, until the next
   one.
7. What changes is said in one line, with its cause.
"""

from typing import Final

from tpiedge.units import format_bytes, format_seconds

PART: Final = 0.05
SETTLED_S: Final = 10.0
LESS: Final = 0.75
#: Less than requests wait for machines.
FIRST_S: Final = 60.0
AGAIN: Final = 4.0
LONGEST_S: Final = 24 * 3600.0
LOOK_S: Final = 2.0
"""So often a machine looks how much it may use."""


class MemoryOffer:
    """`usable` is what the machine may use, in bytes; `now` never decreases from call to call. What a call returns is
    the line for the user, "" where the offer stays."""

    def __init__(self, usable: int) -> None:
        self.offered_bytes = usable
        self._first = usable
        self._roomy: float | None = None  # since when more could be offered
        #: What is offered at most after a node ran out of memory, until when, and what might be used at that end.
        self._cap: int | None = None
        self._until = 0.0
        self._capped_at = 0
        self._length_s = 0.0

    @property
    def reduced(self) -> bool:
        """Whether it offers less than at first."""
        return self.offered_bytes < self._first

    def look(self, usable: int, now: float) -> str:
        """The machine's limits were looked at."""
        most = self._most(usable, now)
        if most < self.offered_bytes * (1 - PART):
            return self._offer(most)
        if most <= self.offered_bytes * (1 + PART):
            self._roomy = None
        elif self._roomy is None:
            self._roomy = now
        elif now - self._roomy >= SETTLED_S:
            return self._offer(most)
        return ""

    def ran_out(self, planned: int, usable: int, now: float) -> str:
        """A node ran out of memory, which was `planned` to take so many bytes."""
        planned = planned or self.offered_bytes
        if planned > min(usable, self.offered_bytes):
            most = self._most(usable, now)
            return self._offer(most) if most < self.offered_bytes else ""
        forgiven = not self._length_s or now >= self._until + LONGEST_S
        self._length_s = FIRST_S if forgiven else min(AGAIN * self._length_s, LONGEST_S)
        self._until = now + self._length_s
        self._cap, self._capped_at = int(LESS * planned), usable
        self.offered_bytes, self._roomy = self._most(usable, now), None
        return (
            f"this machine ran out of memory with {format_bytes(planned)} planned for it: it offers "
            f"{format_bytes(self.offered_bytes)} for the next {format_seconds(self._length_s)}; with --memory it never "
            "offers more than that"
        )

    def insist(self, usable: int, now: float) -> str:
        """Nothing can be done with what is offered."""
        self._until = min(self._until, now)
        most = self._most(usable, now)
        return self._offer(most) if most > self.offered_bytes else ""

    def _most(self, usable: int, now: float) -> int:
        if self._cap is None or now >= self._until or usable > self._capped_at * (1 + PART):
            return usable
        return min(usable, self._cap)

    def _offer(self, most: int) -> str:
        before, self.offered_bytes, self._roomy = self.offered_bytes, most, None
        changed = "less" if most < before else "more"
        return (
            f"this machine has {changed} memory for tpiedge now: it offers {format_bytes(most)} "
            f"(before: {format_bytes(before)})"
        )
