"""`tpiedge worker`: give this machine's memory and processors to a master."""

import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.interrupts import interrupt_says
from tpiedge.cli.nearby import master_nearby
from tpiedge.cli.options import (
    BYTES,
    cache_option,
    keeping_of,
    keeping_options,
    own_memory_option,
    state_option,
)
from tpiedge.cli.scribe import serving_until_stopped
from tpiedge.cli.token import await_token
from tpiedge.cli.types import Location, Number
from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import CONTROL_PORT, FILES_OFFSET, Address, parse_address
from tpiedge.host.device import default_threads, free_disk_bytes
from tpiedge.host.memory_limits import MemoryLimits
from tpiedge.host.private_file import private_folder
from tpiedge.host.process_limits import LEAST_TO_COMPUTE, check_address_space, check_descriptors
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import load_or_create_keys, peer_name
from tpiedge.joining.pairing_link import pair
from tpiedge.joining.tokens import parse_token
from tpiedge.launch.measurements import Measurements, disk_bytes_per_s
from tpiedge.launch.memory_offer import MemoryOffer
from tpiedge.launch.standby import Standby
from tpiedge.local.paths import LOCKER, shards_folder, worker_state
from tpiedge.pack.reader import Pack
from tpiedge.pack.store.store import ShardStore
from tpiedge.shipping.provision import FilesMaster, Provision
from tpiedge.supervision import Supervisor
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.weights import Keeping
from tpiedge.worker.agent import Agent, MasterMoved
from tpiedge.worker.settings import AgentSettings
from tpiedge.worker.trusted_masters import TrustedMasters
from tpiedge.worker.way import WayState, look_for_master

_RETRY_S = 1.0
_BEFORE = "this machine had not joined: the same command tries again, with another code where it showed one"
_MEMBER = "stopped; what was fetched is kept: start it again with --connect, no token is needed"


@dataclass(frozen=True)
class _Master:
    """The master to join. `key` is None where only a confirmed code can tell. `found`: its address was right before."""

    address: Address
    key: str | None
    secret: str = field(repr=False)
    found: bool = False


@dataclass(frozen=True)
class _Joining:
    """This machine as a worker: its name, its state in `folder`, what it keeps and offers. `say` tells the user."""

    folder: Path
    host: str
    store: ShardStore
    local: Sequence[Pack]
    threads: int
    memory_limits: MemoryLimits
    keeping: Keeping
    say: Callable[[str], None]

    @cached_property
    def keys(self) -> CurveKeys:
        return load_or_create_keys(self.folder)

    @cached_property
    def book(self) -> TrustedMasters:
        return TrustedMasters(self.folder)

    @cached_property
    def memory(self) -> MemoryOffer:
        return MemoryOffer(self.memory_limits.usable_bytes())

    @cached_property
    def measurements(self) -> Measurements:
        return Measurements(self.folder, self.threads)

    def master(self, connect: str | None, token: str | None, wait_s: float) -> _Master:
        """The master to join; where nothing names one, one that is found. Raises UserError, PeerError."""
        if token is not None:
            parsed = parse_token(token)
            address = parsed.address if connect is None else parse_address(connect, CONTROL_PORT)
            return _Master(address, parsed.master_key, parsed.secret)
        if connect is None:
            address, key = master_nearby(wait_s, self.book.masters(), self.say)
            return _Master(address, key, "")
        address = parse_address(connect, CONTROL_PORT)
        return _Master(address, self.book.key_of(address), "")

    def serve(self, master: _Master, wait_s: float) -> None:
        """Serves until the master sends the worker away or the user ends it."""
        deadline = time.monotonic() + wait_s
        with ExitStack() as member:
            while True:
                try:
                    self._serve_at_its_address(master, deadline)
                    return
                except MasterMoved as error:
                    self.say(f"{error}: joining it there")
                    member.enter_context(interrupt_says(_MEMBER))
                    # It is waited for there as long as at its old address.
                    master = _Master(master.address, self.book.key_of(master.address), "", found=True)
                    deadline = math.inf

    def _serve_at_its_address(self, master: _Master, deadline: float) -> None:
        """As `serve`, until the address that it has now is another one: raises MasterMoved."""
        with ExitStack() as stack:
            # Imports torch, and measures where need be, while this process joins.
            standby = Standby(self.threads, measure=self.measurements.recall() is None)
            standby.start()
            stack.callback(standby.stop)
            spoke, key, address = self.joined(master, deadline, stack)
            self.book.remember(master.address, key)
            look = partial(look_for_master, master.address, address, key)
            agent = self._agent(address, key, spoke, look, standby)
            with interrupt_says(_MEMBER), Supervisor(lambda _: agent.stop()) as supervisor:
                agent.run()
            supervisor.check()

    def joined(self, master: _Master, deadline: float, stack: ExitStack) -> tuple[ZmqSpoke, str, Address]:
        """The link on which this worker is a member, the master's key, and its numeric address. Raises UserError,
        PeerError."""
        waiting = False
        while True:
            try:
                return self._join(master, stack)
            except PeerError as error:
                if time.monotonic() >= deadline:
                    raise
                if not waiting:
                    waiting = True
                    self.say(f"{error} (trying again)")
                time.sleep(_RETRY_S)

    def _join(self, master: _Master, stack: ExitStack) -> tuple[ZmqSpoke, str, Address]:
        def show(code: str) -> None:
            self.say(f"the code of this worker is {code}; on the master:  tpiedge nodes approve {code}")

        key = master.key or pair(master.address, self.keys, self.host, show)
        name = peer_name(self.keys.public)
        with ExitStack() as attempt:  # a link that is left open would stand in the way of the next one
            try:
                link = open_link(master.address, key, self.keys, name, secret=master.secret)
                spoke = attempt.enter_context(link)
            except UserError as error:
                # A name that means nothing, and somebody else at its address, end a worker at its start. A master that
                # was found before may be there later.
                raise (PeerError(str(error)) if master.found else error) from None
            enrolled = enrol(spoke, self.host, master.secret)
            stack.push(attempt.pop_all())
        self.say(f"joined {enrolled.cluster} as {enrolled.name}")
        return spoke, key, parse_address(spoke.address.removeprefix("tcp://"))

    def _agent(
        self,
        address: Address,
        master_key: str,
        spoke: ZmqSpoke,
        look: Callable[[], WayState],
        standby: Standby,
    ) -> Agent:
        clock, name = MonotonicClock(), peer_name(self.keys.public)
        settings = AgentSettings(
            control_address=address.zmq,
            master_key=master_key,
            name=name,
            host=self.host,
            threads=self.threads,
            # What is kept already may be kept on, or make room.
            free_disk_bytes=free_disk_bytes(self.store.folder) + self.store.usage().held_bytes,
            disk_bytes_per_s=disk_bytes_per_s(self.folder, self.store.folder),
            keeping=self.keeping,
            locker=self.folder / LOCKER,
        )
        files = FilesMaster(address.beside(FILES_OFFSET).zmq, master_key, self.keys, name)
        provision = Provision(files, self.store, clock, list(self.local))
        return Agent(
            settings,
            spoke,
            provision,
            provision,
            clock,
            self.say,
            self.measurements,
            look,
            self.memory,
            self.memory_limits.usable_bytes,
            standby,
        )


@click.command()
@click.option(
    "--connect",
    help=f"The master's HOST or HOST:PORT. Without it and a token: the one joined last, or one with --announce.  "
    f"[default port: {CONTROL_PORT}]",
)
@click.option("--token", help="What the master printed. Without one, a code is shown and confirmed there.")
@click.option(
    "--token-file",
    type=Location(dir_okay=False),
    help="A file that holds the token, or will within --wait.",
)
@own_memory_option
@keeping_options
@click.option("--threads", type=click.IntRange(1, 1024), help="[default: the cores]")
@click.option("--name", help="What the master calls this machine.  [default: its host name]")
@click.option(
    "--model-dir",
    type=Location(file_okay=False, exists=True),
    multiple=True,
    help="A pack on this machine, whose weights need no transfer; repeatable.",
)
@click.option("--cache-limit", type=BYTES, help="Of the shards that are kept.  [default: the disk]")
@click.option(
    "--wait",
    "wait_s",
    type=Number(0, 86400),
    default=0.0,
    show_default=True,
    help="Seconds to wait for a master that is not there yet.",
)
@state_option
@cache_option
def worker(
    connect: str | None, token: str | None, token_file: Path | None, wait_s: float, **given: Any
) -> None:
    """Join a master and compute a share of its model."""
    check_descriptors()
    check_address_space(LEAST_TO_COMPUTE)
    with serving_until_stopped(_BEFORE) as scribe:
        if token is None and token_file is not None:
            token = await_token(token_file, wait_s)
        limits = MemoryLimits(given["memory"])
        own = _Joining(
            folder=private_folder(worker_state(given["state"])),
            host=given["name"] or socket.gethostname(),
            store=ShardStore(shards_folder(given["cache"]), given["cache_limit"]),
            local=[Pack.open(path) for path in given["model_dir"]],
            threads=given["threads"] or default_threads(),
            memory_limits=limits,
            keeping=keeping_of(given["window"], given["pin"], given["io"]),
            say=scribe.say,
        )
        master = own.master(connect, token, wait_s)
        if shortfall := limits.shortfall(own.memory.offered_bytes):
            scribe.say(shortfall)
        own.serve(master, wait_s)
