"""The computing process of one rank: starts, loads weights, runs the engine and ends.

The main thread is the engine thread; `Node.link` has the control thread. The process ends on the master's order, on the
loss of the master or a peer, and when its lifeline breaks.
"""

import functools
import gc
import math
import queue
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Communicator, Route
from tpiedge.engine.batcher import MAX_DRAFTED
from tpiedge.engine.constraints import failed
from tpiedge.engine.forward import Engine, kv_cache
from tpiedge.engine.grammars import Grammars
from tpiedge.engine.meter import Meter
from tpiedge.engine.page_moves import PageDisk, PageMoves, whole_cache_bytes
from tpiedge.engine.runner import ASK_S, Leader, Serving, follow
from tpiedge.engine.steps import StepLimits
from tpiedge.errors import Cancelled, Misconduct, ProtocolError, TpiedgeError, UserError
from tpiedge.host.process import give_back_what_is_freed, peak_rss_bytes
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kv.page_folder import KEPT, PARKED
from tpiedge.kv.pages import usual_grain
from tpiedge.kv.store import PageStore
from tpiedge.launch.bootstrap import NodeBootstrap, control_name
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.disk_order import DiskUse
from tpiedge.memory.scheduler import Counts
from tpiedge.memory.sweep import elastic_bytes, placed
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import config_of_pack
from tpiedge.node.control_link import ClusterLiveness, ControlLink, NodeCommand
from tpiedge.node.data_plane import DataPlane, join_data_plane, route, worker_links
from tpiedge.pack.grids import check_exponents
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.planner.arithmetic import check_compute, check_native
from tpiedge.tracing.tracer import Tracer
from tpiedge.transport.endpoint import CONTROL
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire import control as c

T = TypeVar("T")
_ASSIGN_S = 180.0
_IDLE_S = 0.5


class Node:
    """One rank of one epoch. Call `close` in the end."""

    def __init__(self, bootstrap: NodeBootstrap) -> None:
        self._bootstrap = bootstrap
        self._clock = MonotonicClock()
        timing = bootstrap.timing
        self._liveness = ClusterLiveness(self._clock, timeout_s=timing.timeout_s, stall_s=timing.stall_s)
        self._meter = Meter()
        self._tracer = Tracer() if bootstrap.trace else None
        self._epoch = bootstrap.epoch
        self._disk: DiskQueue | None = None
        self._stores: tuple[PageStore, ...] = ()
        self._weights: NodeWeights | None = None
        self._engine: Engine | None = None
        self._data = DataPlane(Communicator())
        self._route = Route()
        self._leading: Leader | None = None
        #: (Bytes loaded, bytes in all) until the node is ready, then None; and bytes of the KV cache moved so far.
        self._loaded: tuple[int, int] | None = 0, 0
        self._transferred_bytes = 0
        self._drawn: list[c.AnswerPart] = []  # the step's messages for the master
        self._resources = ExitStack()
        own, key = control_name(bootstrap.rank, bootstrap.epoch), bootstrap.master_key
        control = ZmqSpoke(
            bootstrap.control_address, key, bootstrap.keys, own, hub_name="master", plane=CONTROL
        )
        self.link = ControlLink(
            control, self._clock, self._liveness, timing.heartbeat_s, self._heartbeat, self._answer
        )

    def run(self) -> None:
        """Joins the other nodes, loads weights and computes. Raises the error that ends the node."""
        own, rank = self._bootstrap, self._bootstrap.rank
        self.link.start(c.Hello(own.epoch, rank))
        assign = self._expect(c.Assign, "the plan", _ASSIGN_S)
        torch.set_num_threads(assign.threads)
        plane = self._data = join_data_plane(
            assign,
            own,
            self._liveness,
            self._clock,
            self.link.post,
            functools.partial(self._expect, c.Connect, "the addresses of the other nodes", _ASSIGN_S),
            self._resources,
        )
        pack = Pack.open(Path(own.pack))
        share = pack.share_of(assign.share)
        engine = self._build(assign, pack, share, plane.communicator)
        disk = self._page_disk(assign.pages, engine)
        moves = PageMoves(engine, share.along("attention"), disk, self._moved)
        moves.scatter(assign.snapshot)
        self._loaded = None
        self.link.post(self._ready(assign, engine.config, plane))
        gc.freeze()  # objects that live until the end would only make later collections slow
        if rank == 0:
            self._lead(self._leader(engine, assign, moves))
        else:
            follow(engine, moves, self.link.post)

    def close(self) -> None:
        self.link.close()
        self._resources.close()
        if self._tracer is not None:  # now that nothing is read or computed any more
            rank, path = self._bootstrap.rank, Path(self._bootstrap.trace)
            try:
                self._tracer.write(path, rank)
            except OSError as error:  # a lost trace does not change how the node ended
                _say(f"the trace of node {rank} is lost: cannot write {path}: {error.strerror}")

    def report(self, error: TpiedgeError) -> None:
        """Sends `error` to the master. If another node broke the protocol, rank 0 reports that node first."""
        rank, cause = self._bootstrap.rank, str(error)[:2000]
        if isinstance(error, Misconduct) and rank == 0 and error.rank != rank:
            self.link.post(c.Breach(self._epoch, rank, error.rank, cause))
        self.link.post(c.Failed(self._epoch, rank, "", type(error).__name__, cause))

    def _expect(self, kind: type[T], awaited: str, limit_s: float = math.inf) -> T:
        deadline = self._clock.now() + limit_s
        while (command := self._command(_IDLE_S)) is None:
            if self._clock.now() > deadline:
                raise ProtocolError(f"{awaited} did not come within {limit_s:.0f} s")
        if not isinstance(command, kind):
            raise ProtocolError(f"the master sent {type(command).__name__} before {awaited}")
        return command

    def _command(self, limit_s: float) -> NodeCommand | None:
        try:
            command = self.link.commands.get(timeout=limit_s)
        except queue.Empty:
            self._liveness.check_idle(0, "the master's next command")
            if self._engine is not None:
                self._engine.communicator.poll()
            return None
        if isinstance(command, TpiedgeError):
            raise command
        if isinstance(command, NodeCommand):
            return command
        raise Cancelled("the master ended this node")

    def _build(self, assign: c.Assign, pack: Pack, share: NodeShare, communicator: Communicator) -> Engine:
        check_compute(pack.precision, assign.compute)
        check_native(pack.precision, assign.compute, assign.kv)
        check_exponents(assign.grids, pack if assign.compute == "int8" else None)
        config = config_of_pack(pack)
        cache = kv_cache(config, share, assign.kv, assign.sequences, assign.capacity_tokens)
        disk = self._disk = DiskQueue()
        self._resources.callback(disk.close)
        if self._tracer is not None:
            disk.trace(self._tracer)
        self._weights = NodeWeights(
            pack,
            share,
            assign.rank == 0,
            functools.partial(placed, assign.weights),
            kv_bytes=elastic_bytes(assign.weights, cache.reserved_bytes),
            direct=assign.weights.direct,
            progress=functools.partial(self._loading, communicator),
            norm_offset=config.norm_offset,
            disk=disk,
        )
        self._resources.callback(self._weights.close)
        # With a ring memory is short, and reading takes longer than page faults do.
        if self._weights.placement.ring_bytes:
            give_back_what_is_freed()
        linear = Linear.create(Arithmetic(assign.compute), assign.threads)
        self._resources.callback(linear.close)
        engine = self._engine = Engine(
            config, share, self._weights, cache, communicator, linear, self._meter, assign.grids
        )
        if self._tracer is not None:
            self._meter.record(self._tracer, traced=True)
            self._weights.trace(self._tracer)
        return engine

    def _page_disk(self, keys: c.PageKeys | None, engine: Engine) -> PageDisk | None:
        own, disk = self._bootstrap, self._disk
        if keys is None or disk is None or not own.pages:
            return None
        kept = PageStore(Path(own.pages) / KEPT, own.keep_bytes, keys.kept_seal) if keys.keep else None
        usual_bytes = own.park_bytes if keys.park else 0
        halt_bytes = max(
            own.park_bytes, whole_cache_bytes(engine)
        )  # a change of plan parks pages in any case
        parked = PageStore(Path(own.pages) / PARKED, halt_bytes, keys.parked_seal, durable=False)
        found = PageDisk(disk, parked, kept, _say, usual_bytes, halt_bytes)
        self._stores = found.stores
        return found

    def _moved(self, moved_bytes: int) -> None:
        self._transferred_bytes = moved_bytes
        # It counts as loading, because other nodes wait for it.
        if self._loaded is not None:
            done, total = self._loaded
            self._tell_loading(done + moved_bytes, total + moved_bytes)

    def _ready(self, assign: c.Assign, config: ModelConfig, plane: DataPlane) -> c.Ready:
        weight_bytes = self._weights.weight_bytes if self._weights else 0
        if assign.rank != 0 or len(assign.nodes) == 1:
            return c.Ready(assign.epoch, assign.rank, weight_bytes)
        row_bytes = 4 * config.hidden_size * max(layer.sums for layer in config.layers)
        chunk_bytes = row_bytes * StepLimits.of(config.hidden_size, config.input_columns).chunk_tokens
        size = len(assign.nodes)
        self._route, why = route(assign.collective, size, plane.facts, row_bytes, chunk_bytes, assign.wire)
        small, bulk = self._route.small, self._route.bulk
        links = worker_links(plane.facts)
        return c.Ready(assign.epoch, assign.rank, weight_bytes, small, bulk, why[:2000], links)

    def _loading(self, communicator: Communicator, done_bytes: int, total_bytes: int) -> None:
        self._loaded = done_bytes, total_bytes
        self._tell_loading(done_bytes, total_bytes)
        if communicator.rank == 0:
            communicator.poll()

    def _tell_loading(self, done_bytes: int, total_bytes: int) -> None:
        self.link.post(c.Loading(self._epoch, self._bootstrap.rank, done_bytes, total_bytes))

    def _leader(self, engine: Engine, assign: c.Assign, moves: PageMoves) -> Leader:
        cache = engine.cache
        serving = Serving(
            assign.epoch,
            assign.context_tokens,
            assign.sequences,
            min(assign.speculate, MAX_DRAFTED),
            grain_pages=usual_grain(cache.pages, cache.page_bytes) if assign.elastic else 0,
            route=self._route,
            pages=assign.pages,
        )
        grammars = Grammars(Path(self._bootstrap.pack) / TEXT_FOLDER, engine.config.vocab_size)
        self._resources.callback(grammars.close)
        self._leading = Leader(engine, serving, self.link.post, grammars, moves)
        return self._leading

    def _lead(self, leader: Leader) -> None:
        while True:
            if leader.idle:
                # A short wait: a compiled grammar and pages from disk are noticed soon.
                command = self._command(ASK_S if leader.preparing else _IDLE_S)
                if command is not None:
                    self._handle(leader, command)
            while not self.link.commands.empty() and (command := self._command(0.0)) is not None:
                self._handle(leader, command)
            finished = leader.step()
            if not (self._drawn or finished):
                continue
            # All at once: the control thread, once woken, takes Python's lock from the drawing of other tokens.
            self.link.post([*self._drawn, *finished])
            self._drawn.clear()
            self.link.await_room()

    def _handle(self, leader: Leader, command: NodeCommand) -> None:
        match command:
            case c.Generate(request=request) | c.Compile(request=request):
                try:
                    if isinstance(command, c.Compile):
                        leader.compile(request, command.group)
                    else:
                        leader.submit(request, self._drawn.append)
                except UserError as error:
                    self.link.post(failed(self._epoch, request.id, error))
            case c.Halt():
                self.link.post(leader.halt(command))
                self._expect(c.Resume, "the next epoch")
                leader.resume()
            case _:
                raise ProtocolError(f"the master sent {type(command).__name__} to a running node")

    # --- what the control thread calls

    def _answer(self, message: c.Cancel | c.AskStats) -> c.Stats | None:
        if isinstance(message, c.Cancel):
            if self._leading is not None:
                self._leading.cancel(message.request)
            return None
        if message.timeline and self._leading is not None:
            self._leading.record_next()
        return self._stats()

    def _heartbeat(self) -> c.Heartbeat:
        bytes_read = (self._disk.moved_bytes if self._disk else 0) + self._transferred_bytes
        reading = self._leading.reading if self._leading is not None else ()
        return c.Heartbeat(
            self._epoch, self._bootstrap.rank, self._meter.step, self._meter.block, bytes_read, reading
        )

    def _stats(self) -> c.Stats:
        meter, weights, engine = self._meter, self._weights, self._engine
        sent, received, dropped, refused = self._data.traffic
        counts = weights.counts if weights else Counts()
        brought = self._disk.used("bring") if self._disk else DiskUse()
        left = self._disk.used("leave") if self._disk else DiskUse()
        used, pages = self._leading.pages if self._leading else (0, 0)
        return c.Stats(
            epoch=self._epoch,
            rank=self._bootstrap.rank,
            peak_rss_bytes=peak_rss_bytes(),
            weight_bytes=weights.weight_bytes if weights else 0,
            kv_bytes=engine.cache.held_bytes if engine else 0,
            disk_read_bytes=weights.disk_read_bytes if weights else 0,
            bytes_sent=sent,
            bytes_received=received,
            compute_s=meter.attention_s + meter.ffn_s,
            attention_s=meter.attention_s,
            ffn_s=meter.ffn_s,
            reduce_wait_s=meter.reduce_wait_s,
            weight_wait_s=counts.stall_s,
            load_s=weights.disk_busy_s if weights else 0.0,
            reads=counts.reads,
            prefetch_hits=counts.hits,
            stalls=counts.stalls,
            steps=meter.steps,
            tokens=meter.tokens,
            head_s=meter.head_s,
            dropped=dropped,
            refused=refused,
            kv_pages=pages,
            kv_pages_used=used,
            drafted=meter.drafted,
            accepted=meter.accepted,
            window_bytes=weights.window_bytes if weights else 0,
            kv_reserved_bytes=engine.cache.reserved_bytes if engine else 0,
            brought_bytes=brought.nbytes,
            left_bytes=left.nbytes,
            brought_pages=brought.jobs,
            left_pages=left.jobs,
            bring_s=brought.busy_s,
            leave_s=left.busy_s,
            evicted_pages=sum(store.evicted for store in self._stores),
        )


def _say(what: str) -> None:
    sys.stderr.write(f"tpiedge: {what}\n")
