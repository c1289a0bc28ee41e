"""The real master among machines and clients that are played; after every event its laws are looked at."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from tests.simulation import formula
from tests.simulation.clients import Client
from tests.simulation.machines import SimulatedAgent, SimulatedNode
from tests.unit.master.stories import SERVED, SHAPE, Story, assignments_of
from tpiedge.errors import ResourceError, TpiedgeError
from tpiedge.master.assignments import Assignments, Served
from tpiedge.master.reconciler import RECOVERY_GRACE_S, NotServing
from tpiedge.master.request_queue import QueueFull
from tpiedge.master.roster import Machine
from tpiedge.master.session import Phase
from tpiedge.master.turns import Hosted
from tpiedge.master.workers import LONGEST_S
from tpiedge.pack.share import Share
from tpiedge.planner.capacity import SpareReason
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

#: One heartbeat of the master's, in seconds; nodes take a step in each.
_BEAT_S = 0.3
PACKS = (SERVED.pack_id, "pack-2", "pack-3")
#: A machine that is silent is lost within it, in seconds.
_NOTICED_S = 3.0
#: An epoch that was halted for the next one goes on, or is followed, within it.
_HALTED_S = 20.0
#: Messages that answer each other end after so many rounds.
_ROUNDS = 60
_SMALLEST_BYTES = 1 << 20
_ENOUGH_BYTES = 600 << 20
#: Query heads, and tiles of the FFN.
_UNITS = 24
#: In seconds of the cluster: once nothing goes wrong any more, every request has ended within it.
_TIMEOUT_S = 300.0
#: A worker that failed waits no longer, and nothing else keeps a healthy one from serving.
_SERVES_S = LONGEST_S + _TIMEOUT_S


class LawBroken(AssertionError):
    def __init__(self, law: str, details: tuple[object, ...], when: float) -> None:
        super().__init__(f"{law}: {', '.join(map(str, details))} (after {when:.1f} s)")
        self.law = law


@dataclass(frozen=True)
class Setup:
    """`error` is added to all but the first tokens of an answer: stories find it."""

    workers: int = 3
    min_workers: int = 0
    parallel: int = 2
    queue_limit: int = 4
    error: int = 0
    models: int = 1


class Cluster(Story):
    """Events are methods, which `stories` names; one that does not apply does nothing."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.members_keys: dict[str, str] = {}
        self.machines: dict[str, SimulatedAgent] = {}
        self.live: list[SimulatedNode] = []
        self.clients: list[Client] = []
        self.load_beats = self.beats_a_step = 1
        self.beats = 0
        self.drained: dict[str, Future[str]] = {}
        self.drain_nonce: dict[str, int] = {}
        self.revoked: set[str] = set()
        self.silent_since: dict[str, float] = {}
        self.crashed: set[int] = set()
        self.served_last: float | None = None
        self.epochs: set[int] = set()
        self.phases: dict[int, Phase] = {}
        self.saved: dict[int, bytes] = {}  # names of pages that were parked for each epoch
        self.last_epoch = 0
        self.requests = 0
        self.count = 0
        self.unplanned: set[str] = set()  # packs that no plan can serve
        self.unloadable: set[str] = set()  # packs whose weights no node can read
        self.served = replace(SERVED, sequences=setup.parallel, kv_head_bytes=1024.0)
        super().__init__(self.served, setup.queue_limit)

    def begin_master(self, served: Served, queue_limit: int = 4, known: Sequence[str] = ()) -> None:
        super().begin_master(served, queue_limit, known)
        for pack in PACKS[1 : self.setup.models]:
            other = replace(served, pack=Path(f"/{pack}"), pack_id=pack, name=pack)
            self.master.add_model(Hosted(other, partial(self._planned, pack)))
        turns = self.master._reconciler.turns
        turns.failed = partial(self._failed, turns.failed)  # type: ignore[method-assign]

    def _failed(
        self, failed: Callable[..., bool], pack: str, error: TpiedgeError, *, again: bool = False
    ) -> bool:
        """Notes whose requests may fail, and that nothing else happens to the previous model."""
        turns, ready = self.master._reconciler.turns, self.master._sessions.ready
        before = turns.served
        found = failed(pack, error, again=again)
        if found:
            self.law(ready is None or ready.served.pack_id != pack, "what serves has not failed", pack)
            self.law(turns.wanted is before, "the previous model goes on", turns.wanted.pack)
            for client in self.clients:
                client.refused |= client.request.pack == pack and not again
        return found

    def law(self, holds: bool, law: str, *details: object) -> None:
        if not holds:
            raise LawBroken(law, details, self.clock.now())

    def was_asked(self, name: str, epoch: int) -> None:
        self.law(name in self.members_keys, "only members have a part of a plan", name)
        self.last_epoch = max(self.last_epoch, epoch)

    def goes_on(self, request: GenerationRequest) -> None:
        for client in self.clients:
            if client.request.id == request.id:
                known, given = tuple(client.tokens), request.answer_ids
                self.law(given[: len(known)] == known, "no epoch draws again what was passed on", given)

    def look(self) -> None:
        now, status = self.clock.now(), self.master.status
        if status.ready:
            self.served_last = now
        since = self.served_last
        grace_over = since is None or now - since >= RECOVERY_GRACE_S - 1
        for client in self.clients:
            client.listen(grace_over=grace_over)
        self.clients = [client for client in self.clients if client.end is None]
        names = [node.name for node in status.nodes]
        self.law(len(names) == len(set(names)), "each machine has one line", names)
        ranks = sorted(node.rank for node in status.nodes if node.rank is not None)
        self.law(ranks == list(range(len(ranks))), "ranks have no gap", ranks)
        self.law(not (self.revoked & set(names) - set(self.members_keys)), "who is revoked is gone", names)
        self.law(not (status.asleep and status.ready), "what sleeps serves nothing")
        if status.ready:
            self.law(status.epoch == self.rank_zero.epoch, "what serves is what runs", status.epoch)
            self._look_for_silent(status.epoch)
        else:
            self.law(bool(status.reason), "what serves nothing says why")
            self.silent_since = {}
        roots = [node for node in self.live if node.rank == 0]
        self.law(len(roots) <= 1, "one epoch serves at a time", [root.epoch for root in roots])
        for session in self.master._sessions.active:
            number, phase, epoch = session.number, session.phase, session.epoch
            was = self.phases.get(number, phase)
            self.law(
                [*Phase].index(was) <= [*Phase].index(phase), "phases do not go back", number, was, phase
            )
            self.phases[number] = phase
            whole = epoch is not None and epoch.all_ready
            self.law(phase is not Phase.READY or whole, "what is ready has every node", number)
        halted = [root.halted_at for root in roots if root.halted and root.serves]
        self.law(all(now - since <= _HALTED_S for since in halted), "a halt comes to an end", halted)

    def _look_for_silent(self, epoch: int) -> None:
        """Checks that no machine of the plan is silent, or lacks its node, for long."""
        planned = {one.name for one in self.master.status.nodes if one.rank}
        for name in planned & self.machines.keys():
            agent = self.machines[name]
            node = agent.node
            if not agent.frozen and node is not None and node.epoch == epoch and not node.frozen:
                planned.discard(name)
        since = {name: self.silent_since.get(name, self.clock.now()) for name in planned}
        self.silent_since = since
        late = [name for name, begun in since.items() if self.clock.now() - begun > _NOTICED_S]
        self.law(not late, "who is silent serves no more", late)

    def look_at_rest(self) -> None:
        self.look()
        status = self.master.status
        self.law(
            status.queued + status.running == len(self.clients),
            "the status counts every request",
            status.queued,
            status.running,
            len(self.clients),
        )
        self.law(
            not status.ready or status.epoch not in self.crashed,
            "a node that ends is lost as soon as its agent says so",
            status.epoch,
        )
        self.law(not (status.asleep and self.clients), "the cluster sleeps only without requests")
        self.law(status.running <= self.setup.parallel, "no more run than may", status.running)

    def _is_drained(self, name: str) -> bool:
        order = self.drained.get(name)
        if order is None or not order.done() or order.exception() is not None:
            return False
        return name in self.machines and self.machines[name].nonce == self.drain_nonce[name]

    def _arranged(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments:
        return self._planned(PACKS[0], machines, serving)

    def _planned(self, pack: str, machines: tuple[Machine, ...], _serving: tuple[str, ...]) -> Assignments:
        """Gives all that are large enough equal parts; each makes a token quicker."""
        if pack in self.unplanned:
            return Assignments((), reason="it needs more memory")
        small = {
            one.name: SpareReason("too small", "it is too small")
            for one in machines
            if one.offer.memory_bytes < _SMALLEST_BYTES
        }
        fit = [one.name for one in machines if one.name not in small]
        own_bytes = self.rank_zero.memory_bytes
        for name in fit:
            self.law(name in self.members_keys, "only members are planned with", name)
            self.law(not self._is_drained(name), "who is drained is not planned with", name)
        if len(fit) < self.setup.min_workers:
            reason = f"{len(fit)} of {self.setup.min_workers} workers here"
            return Assignments((), small, reason=reason)
        weights = [2 if own_bytes < _ENOUGH_BYTES and fit else 4, *(4 for _ in fit)]
        ends = [round(_UNITS * sum(weights[:rank]) / sum(weights)) for rank in range(len(weights) + 1)]
        shares = [Share(*ends[rank : rank + 2]) for rank in range(len(weights))]
        parts = tuple(
            replace(part, share=SHAPE.share(share, share), weight_bytes=PACKS.index(pack))
            for part, share in zip(assignments_of(*fit), shares, strict=True)
        )
        return Assignments(parts, small, 1.0 / (1 + len(fit)))

    def node(self, rank: int, epoch: int) -> SimulatedNode:
        found = self.nodes.get((rank, epoch))
        if found is None:
            self.last_epoch = max(self.last_epoch, epoch)
            found = self.nodes[rank, epoch] = SimulatedNode(self, rank, epoch)
            self.live.append(found)
        assert isinstance(found, SimulatedNode)
        return found

    def turn(self, rounds: int = _ROUNDS) -> None:
        """Lets everybody say and hear, at most so often one after the other, without time passing."""
        for _ in range(rounds):
            said = self._said()
            self.hub.wake()
            self.master.turn()
            self._start_root()
            players = [*self.machines.values(), *self.live]
            heard = sum(len(one.heard) for one in players)
            for player in players:
                player.listen()
            self.live = [node for node in self.live if not node.dead]
            if self._said() == said and sum(len(one.heard) for one in players) == heard:
                return
        self.law(rounds < _ROUNDS, "messages that answer each other come to an end")

    def _said(self) -> int:
        return sum(one.said for one in (*self.machines.values(), *self.live))

    def _start_root(self) -> None:
        epoch = self.rank_zero.epoch
        for node in self.live:
            if node.rank == 0 and node.epoch != epoch:
                node.die()
        if epoch is None or self.rank_zero.cause is not None:
            return
        root = self.node(0, epoch)
        if not root.joined and not root.dead:
            self.law(epoch not in self.epochs, "no epoch is started twice", epoch)
            self.epochs.add(epoch)
            root.hello()

    def wait(self, seconds: float) -> None:
        end = self.clock.now() + seconds
        while (left := end - self.clock.now()) > 1e-9:
            self.clock.advance(min(_BEAT_S, left))
            for agent in self.machines.values():
                agent.pulse()
            for node in list(self.live):
                node.beat()
            self.turn()
            for node in list(self.live):
                if node.rank == 0 and self._computes(node):
                    node.compute()
            self.turn()
            self.look_at_rest()

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        self._until(condition, "what the test waits for comes", limit_s)

    def _computes(self, root: SimulatedNode) -> bool:
        peers = [self.nodes.get((rank, root.epoch)) for rank in range(root.size)]
        ready = all(isinstance(one, SimulatedNode) and one.serves for one in peers)
        self.beats += 1
        return bool(peers) and ready and not root.halted and self.beats % self.beats_a_step == 0

    def join(self, worker: int) -> None:  # type: ignore[override]
        name = f"w-{worker}"
        if name not in self.members_keys:
            key = self.members_keys[name] = CurveKeys.generate().public
            self.hub.admission.admit(key, name)
            self.registrar.members.add(name)
            self.registrar.new.append(name)
            self.revoked.discard(name)
        if name not in self.machines:
            self.machines[name] = SimulatedAgent(self, name)
            self.machines[name].introduce()
        elif self.machines[name].gone:
            self.machines[name].come(anew=True)

    def _here(self, worker: int) -> SimulatedAgent | None:
        found = self.machines.get(f"w-{worker}")
        return None if found is None or found.gone else found

    def leave(self, worker: int) -> None:
        if agent := self._here(worker):
            agent.leave()

    def vanish(self, worker: int) -> None:
        if agent := self._here(worker):
            agent.vanish()

    def freeze_machine(self, worker: int) -> None:
        if agent := self._here(worker):
            if agent.node is not None:
                agent.node.frozen = True
            agent.frozen = True

    def thaw(self, worker: int) -> None:
        if agent := self._here(worker):
            agent.frozen = False
            if agent.node is not None:
                agent.node.frozen = False

    def freeze_agent(self, worker: int) -> None:
        if agent := self._here(worker):
            agent.frozen = True

    def freeze_node(self, worker: int) -> None:
        agent = self._here(worker)
        if agent is not None and agent.node is not None:
            agent.node.frozen = True

    def hang(self, worker: int) -> None:
        """The node beats and computes nothing; worker 0: rank 0."""
        agent = self._here(worker)
        node = self._root() if worker == 0 else agent.node if agent is not None else None
        if node is not None:
            node.hung = True

    def crash(self, worker: int) -> None:
        if worker == 0:
            if (root := self._root()) is not None:
                root.die()
                self.rank_zero.cause = "it was killed by signal 9"
        elif agent := self._here(worker):
            if agent.node is not None and not agent.frozen:
                self.crashed.add(agent.node.epoch)
            agent.crash("it was killed by signal 9")

    def _root(self) -> SimulatedNode | None:
        return next((node for node in self.live if node.rank == 0), None)

    def restart_agent(self, worker: int) -> None:
        if agent := self._here(worker):
            agent.come(anew=True)

    def break_link(self, worker: int) -> None:
        if self._here(worker):
            self.hub.deliver(f"w-{worker}", None)

    def break_protocol(self, worker: int) -> None:
        agent = self._here(worker)
        if agent is not None and agent.node is not None and self.clients:
            name = self.clients[0].request.id
            agent.node.say(Token(agent.node.epoch, name, len(self.clients[0].parts), 1, ()))

    def echo_of_the_past(self) -> None:
        old = [
            node for (rank, epoch), node in self.nodes.items() if not rank and epoch != self.rank_zero.epoch
        ]
        if old and self.clients:
            node, client = old[-1], self.clients[0]
            self.hub.admission.admit(CurveKeys.generate().public, node.spoke.name)
            token = Token(node.epoch, client.request.id, len(client.tokens), 99, ())
            self.hub.spoke(node.spoke.name).send(token)
            self.hub.wake()
            self.master.turn()
            self.hub.admission.revoke(node.spoke.name)
            self.hub.disconnect(node.spoke.name)

    def revoke(self, worker: int) -> None:
        name = f"w-{worker}"
        if name in self.members_keys:
            del self.members_keys[name]
            self.hub.admission.revoke(name)
            self.registrar.members.discard(name)
            if (agent := self.machines.pop(name, None)) is not None:
                agent.vanish()
            self.hub.disconnect(name)
            self.master.remove_worker(name)
            self.master.turn()
            self.revoked.add(name)
            self.drained.pop(name, None)

    def drain(self, worker: int) -> None:
        if self._here(worker):
            name = f"w-{worker}"
            self.drained[name], self.drain_nonce[name] = (
                self.master.drain_worker(name),
                self.machines[name].nonce,
            )

    def undrain(self, worker: int) -> None:
        self.drained.pop(f"w-{worker}", None)
        self.master.undrain_worker(f"w-{worker}")

    def clear(self, worker: int) -> None:
        self.master.clear_worker(f"w-{worker}")

    def limit(self, worker: int, mib: int) -> None:
        if worker == 0:
            self.rank_zero.memory_bytes = mib << 20
        elif agent := self._here(worker):
            agent.memory_bytes = mib << 20
            agent.introduce()

    def trouble(self, worker: int, cause: str) -> None:
        if agent := self._here(worker):
            agent.trouble = cause

    def forget_pack(self, worker: int, model: int) -> None:
        """Makes the worker unable to prepare one model's part."""
        if (agent := self._here(worker)) and self.setup.models > 1:
            agent.lacks = self._pack(model)

    def unplan(self, model: int, refused: bool) -> None:
        self._mark(self.unplanned, model, refused)

    def unload(self, model: int, refused: bool) -> None:
        self._mark(self.unloadable, model, refused)

    def _mark(self, marked: set[str], model: int, refused: bool) -> None:
        if refused and self.setup.models > 1:
            marked.add(self._pack(model))
        else:
            marked.discard(self._pack(model))
        self.master._roster.generation += 1  # as if a machine's memory had changed

    def _pack(self, model: int) -> str:
        return PACKS[model % self.setup.models]

    def choose(self, model: int, now: bool) -> None:
        """An administrator chooses a model; `now`: and ends the requests of others."""
        pack = self._pack(model)
        self.master.choose_model(pack)
        if now:
            for client in self.clients:
                if self.setup.models > 1 and client.request.pack != pack:
                    client.cancelled = len(client.parts) if client.cancelled is None else client.cancelled
            self.master.requests.dismiss_others(pack)

    def keep(self, seconds: float) -> None:
        self.master.keep_weights(seconds)

    def slow_disk(self, worker: int, beats: int) -> None:
        if agent := self._here(worker):
            agent.fetch_beats = beats

    def slow_loading(self, beats: int) -> None:
        self.load_beats = beats

    def slow_steps(self, beats: int) -> None:
        self.beats_a_step = beats

    def refuse_processes(self, refused: bool) -> None:
        self.rank_zero.refusal = ResourceError("no process can be started") if refused else None

    def ask(
        self, length: int, max_tokens: int, kind: str = "", has_reader: bool = True, model: int = 0
    ) -> Client | None:
        """Somebody asks; None if refused. `kind`: "scores", "vector", "grammar", "poison", "whole" (no end of its own)
        or ""."""
        self.requests += 1
        number = self.requests
        prompt = (formula.POISON if kind == "poison" else number, *range(1, length))
        request = GenerationRequest(
            f"r-{number}",
            prompt,
            0 if kind == "vector" else max_tokens,
            Sampling(seed=number % 5),
            () if kind == "whole" else (formula.STOP,),
            prompt_scores=kind == "scores",
            pooling="mean" if kind == "vector" else "none",
            grammar=Grammar("regex", "a*") if kind == "grammar" else None,
            pack=self._pack(model) if self.setup.models > 1 else "",
        )
        try:
            pending = self.master.submit(request, has_reader=has_reader)
        except QueueFull:
            open_of = len(self.clients)
            self.law(open_of >= self.setup.queue_limit // 2, "who asks alone has all places", open_of)
        except NotServing as error:
            since = self.served_last
            over = since is None or self.clock.now() - since >= RECOVERY_GRACE_S - 1
            self.law(over, "nobody is refused before the grace is over", error)
            self.law(not self.master.status.asleep, "a request wakes a cluster that sleeps", error)
        else:
            self.clients.append(Client(request, pending, self.law, has_reader))
            return self.clients[-1]
        return None

    def _open(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    def cancel(self, number: int) -> None:
        if client := self._open(number):
            client.cancel()

    def go_away(self, number: int) -> None:
        if client := self._open(number):
            client.has_reader = False
            client.pending.set_has_reader(False)

    def come_back(self, number: int) -> None:
        if client := self._open(number):
            client.has_reader = True
            client.pending.set_has_reader(True)

    def observe(self) -> None:
        self.master.observe(timeline=True)

    def kill_master(self, lost: int) -> None:
        self.look()
        for node in self.live:
            node.die()
        self.live = []
        self.hub.close()
        last_epoch = max(self.last_epoch, self.master._sessions.number)
        self.begin_master(self.served, self.setup.queue_limit, known=list(self.members_keys))
        for name, key in self.members_keys.items():
            self.hub.admission.admit(key, name)
        for name, agent in self.machines.items():
            if not agent.gone:
                agent.reset()
                agent.spoke = self.hub.spoke(name)
                agent.pulse()
        self.drained.clear()
        self.clients = [client for client in self.clients if client.cancelled is None]
        self.served_last = self.clock.now() if self.clients else None
        for client in self.clients:
            client.lose_tail(lost)
            client.resumed(self.master.resume(client.request, client.parts))
        with patch.object(threading.Thread, "start"):  # the story takes the control thread's turns
            self.master.start(last_epoch + 1)

    def heal(self) -> None:
        self.refuse_processes(False)
        self.load_beats = self.beats_a_step = 1
        self.limit(0, 1 << 20)
        for model in range(len(PACKS)):
            self.unplan(model, False)
            self.unload(model, False)
        for worker in range(1, self.setup.workers + 1):
            self.join(worker)
            self.thaw(worker)
            self.trouble(worker, "")
            self.machines[f"w-{worker}"].lacks = ""
            self.slow_disk(worker, 0)
            self.limit(worker, 1024)
        for number in range(len(self.clients)):
            self.come_back(number)
        for node in self.live:
            node.hung, node.frozen = False, node.dead

    def finish(self) -> None:
        self.heal()
        self._until(lambda: not self.clients, "every request ends")
        self._until(lambda: self.ready or self.master.status.asleep, "a healthy cluster serves", _SERVES_S)
        self._until(lambda: not any(map(self._is_drained, self.members())), "who is drained leaves the plan")
        for number in range(self.setup.queue_limit):
            self.ask(3, 2, model=number)
        self.law(len(self.clients) == self.setup.queue_limit, "every place in the queue comes back")
        self._until(lambda: not self.clients, "every later request ends")
        self.wait(1.0)
        self._look_for_rest()

    def _until(self, condition: Callable[[], bool], law: str, limit_s: float = _TIMEOUT_S) -> None:
        begun = self.clock.now()
        while not condition():
            self.law(self.clock.now() - begun < limit_s, law, self.master.status.reason)
            self.wait(_BEAT_S)

    def _look_for_rest(self) -> None:
        status = self.master.status
        self.law(self.master.requests.idle, "nothing runs or waits at the end", status)
        nodes = {f"node-{node.rank}.{node.epoch}" for node in self.live}
        admitted = set(self.hub.admission.admitted)
        self.law(
            admitted == nodes | set(self.members_keys), "no node of an ended epoch is admitted", admitted
        )
        for name, agent in self.machines.items():
            node = agent.node
            stale = node is not None and node.epoch != status.epoch
            self.law(not stale, "no node of an ended epoch runs", name)

        self.end()
        self.law(self.rank_zero.epoch is None, "rank 0 ends with its master")

    def end(self) -> None:
        self.master.close()
        self.hub.close()
