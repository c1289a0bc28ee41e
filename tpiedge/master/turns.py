"""Decides which model the cluster serves.

Laws:
1. Among models with waiting requests, the one that served longest ago is next. An administrator's choice is next once
   the served model is idle. The served model goes on until the next session is prepared.
2. A turn ends once no request of its model runs or waits. While requests wait for the next model, a turn lasts at most
   TURN times the switch's duration, counted from the turn's start or the next model's choice, whichever is later. Then
   answers pause. The client whose request caused a switch is charged for it.
3. If a model cannot be served, its requests fail or wait. The previous model goes on."""

import math
from dataclasses import dataclass, field
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import TpiedgeError
from tpiedge.master.assignments import Served
from tpiedge.master.loss_plans import PlaceNodes
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.session import Session

TURN: Final = 9  # switches take at most a tenth of the time


@dataclass(frozen=True)
class Hosted:
    """A model and its planner."""

    served: Served
    plan: PlaceNodes

    @property
    def pack(self) -> str:
        return self.served.pack_id


@dataclass(eq=False)
class Turns:
    """Belongs to the control thread, but for `wanted`, which any thread may read."""

    _clock: Clock
    _requests: RequestQueue
    wanted: Hosted  # plans are made for this model
    known: dict[str, Hosted] = field(default_factory=dict)  # by pack
    served: Hosted = field(
        init=False
    )  # the model of the latest session that was ready; first, the wanted one
    chosen: str = ""  # the pack that an administrator chose, until it serves
    since: float = 0.0  # when the wanted model was chosen
    keep_s: float = math.inf  # how long weights stay in memory without requests
    asleep: bool = False  # no session is wanted until a request waits
    waking: bool = False  # from then until a session is ready
    _client: str | None = None  # of the request that caused the switch
    _idle_since: float | None = None
    _ended: dict[str, float] = field(default_factory=dict)  # when models last served, by pack
    _held: dict[str, float] = field(default_factory=dict)  # packs that have no turn before a time

    def __post_init__(self) -> None:
        self.known[self.wanted.pack] = self.served = self.wanted

    @property
    def next_pack(self) -> str:
        """The pack of the next model, or ""."""
        return self.chosen or ("" if self.served.pack == self.wanted.pack else self.wanted.pack)

    def choose(self, serving: Session | None, *, idle: bool) -> bool:
        """Chooses the wanted model. Returns whether it changed or `asleep` ended. `serving`: the session that is ready.
        `idle`: no request runs or waits."""
        now = self._clock.now()
        self._idle_since = None if not idle else now if self._idle_since is None else self._idle_since
        if self.asleep:
            if idle and not self.chosen:
                return False
            self.asleep, self.waking = False, True
            self._look(serving, now)
            return True
        return (len(self.known) > 1 or self.chosen != "") and self._look(serving, now)

    def _look(self, serving: Session | None, now: float) -> bool:
        here = serving.served.pack_id if serving is not None else ""
        if here:
            self._ended[here] = now
        if here == self.chosen:
            self.chosen = ""
        waiting, wanted = self._requests.models, self.wanted.pack
        if wanted in waiting and wanted != here:
            return False
        held = {pack for pack, until in self._held.items() if now < until}
        others = [pack for pack in waiting if pack in self.known and pack not in {here, *held}]
        if others:
            pack = min(others, key=lambda one: self._ended.get(one, -math.inf))
        elif self.chosen and not (here and self._requests.has(here)):
            pack = self.chosen
        else:
            pack = here or wanted
        if pack == wanted:
            return False
        self.wanted, self.since, self._client = self.known[pack], now, waiting.get(pack)
        return True

    def over(self, serving: Session, pause_s: float) -> bool:
        """Whether the turn of `serving` ends for the wanted model. `pause_s`: seconds that the switch will take."""
        if not self._requests.has(serving.served.pack_id):
            return True
        waits = self.wanted.pack in self._requests.models
        return waits and min(serving.served_s, self._clock.now() - self.since) >= TURN * pause_s

    def serves(self, session: Session) -> None:
        """Notes that `session` is ready."""
        self.waking = False
        if self.served.pack != session.served.pack_id:
            if self._client is not None:
                self._requests.charge(self._client, session.start_s)
            self.served, self._client = self.known[session.served.pack_id], None

    def failed(self, pack: str, error: TpiedgeError, *, again: bool = False) -> bool:
        """Fails the requests of the model `pack`, and makes the served model the wanted model again. `again`: whether
        the requests wait instead, for another try soon. Changes nothing and returns False if this model is served."""
        if pack in ("", self.served.pack):
            return False
        if again:
            self._held[pack] = self._clock.now() + 5.0
        else:
            self._requests.fail_all(error, pack)
        self.wanted, self._client = self.served, None
        if self.chosen == pack:
            self.chosen = ""
        return True

    def kept_s(self, serving: Session | None) -> float:
        """Returns how many seconds the weights stay in memory if no request comes."""
        if serving is None or self._idle_since is None:
            return self.keep_s
        return self.keep_s - min(self._clock.now() - self._idle_since, serving.served_s)

    def sleeps(self, serving: Session | None) -> bool:
        """Whether the serving session should end, for want of requests."""
        if serving is None or self._idle_since is None or self.chosen:
            return False
        self.asleep = self.kept_s(serving) <= 0
        return self.asleep
