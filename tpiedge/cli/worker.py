"""`tpiedge worker`: give this machine's memory and processors to a master."""

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from tpiedge.cli.ending import interrupt_says, serving_until_stopped
from tpiedge.cli.nearby import master_nearby
from tpiedge.cli.options import (
    BYTES,
    cache_option,
    keeping_of,
    keeping_options,
    own_memory_option,
    state_option,
)
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
from tpiedge.wire.fields import Pin
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
class _Self:
    """This worker's name and keys, and where it keeps things."""

    keys: CurveKeys
    host: str
    store: ShardStore
    local: list[Pack]
    threads: int
    memory_limits: MemoryLimits
    memory: MemoryOffer
    keeping: Keeping
    disk_bytes_per_s: float
    locker: Path


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
    type=Number(0, 86400),
    default=0.0,
    show_default=True,
    help="Seconds to wait for a master that is not there yet.",
)
@state_option
@cache_option
def worker(
    connect: str | None,
    token: str | None,
    token_file: Path | None,
    memory: int | None,
    window: tuple[int, int] | None,
    pin: Pin,
    io: str,
    threads: int | None,
    name: str | None,
    model_dir: tuple[Path, ...],
    cache_limit: int | None,
    wait: float,
    state: Path | None,
    cache: Path | None,
) -> None:
    """Join a master and compute a share of its model."""
    check_descriptors()
    check_address_space(LEAST_TO_COMPUTE)
    with serving_until_stopped(_BEFORE) as scribe:
        if token is None and token_file is not None:
            token = await_token(token_file, wait)
        folder = private_folder(worker_state(state))
        book = TrustedMasters(folder)
        master = _master(connect, token, book, lambda: master_nearby(wait, book.masters(), scribe.say))
        store = ShardStore(shards_folder(cache), cache_limit)
        limits = MemoryLimits(memory)
        usable = limits.usable_bytes()
        if shortfall := limits.shortfall(usable):
            scribe.say(shortfall)
        own = _Self(
            keys=load_or_create_keys(folder),
            host=name or socket.gethostname(),
            store=store,
            local=[Pack.open(path) for path in model_dir],
            threads=default_threads() if threads is None else threads,
            memory_limits=limits,
            memory=MemoryOffer(usable),
            keeping=keeping_of(window, pin, io),
            disk_bytes_per_s=disk_bytes_per_s(folder, store.folder),
            locker=folder / LOCKER,
        )
        _serve(master, own, book, Measurements(folder, own.threads), wait, scribe.say)


def _serve(
    master: _Master,
    own: _Self,
    book: TrustedMasters,
    measurements: Measurements,
    wait: float,
    say: Callable[[str], None],
) -> None:
    """Serves until the master sends the worker away or the user ends it."""
    deadline = time.monotonic() + wait
    with ExitStack() as member:
        while True:
            try:
                _serve_at_its_address(master, own, book, measurements, deadline, say)
                return
            except MasterMoved as error:
                say(f"{error}: joining it there")
                member.enter_context(interrupt_says(_MEMBER))
                # It is waited for there as long as at its old address.
                master = _Master(master.address, book.key_of(master.address), "", found=True)
                deadline = math.inf


def _serve_at_its_address(
    master: _Master,
    own: _Self,
    book: TrustedMasters,
    measurements: Measurements,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    """As `_serve`, until the address that it has now is another one: raises MasterMoved."""
    with ExitStack() as stack:
        # Imports torch, and measures where need be, while this process joins.
        standby = Standby(own.threads, measure=measurements.recall() is None)
        standby.start()
        stack.callback(standby.stop)
        spoke, key, address = _joined(master, own, deadline, stack, say)
        book.remember(master.address, key)
        look = partial(look_for_master, master.address, address, key)
        agent = _agent(own, address, key, spoke, measurements, look, standby, say)
        with interrupt_says(_MEMBER), Supervisor(lambda _: agent.stop()) as supervisor:
            agent.run()
        supervisor.check()


def _master(
    connect: str | None,
    token: str | None,
    book: TrustedMasters,
    look: Callable[[], tuple[Address, str | None]],
) -> _Master:
    """The master to join; where nothing names one, the one that `look` finds. Raises UserError, PeerError."""
    if token is not None:
        parsed = parse_token(token)
        address = parsed.address if connect is None else parse_address(connect, CONTROL_PORT)
        return _Master(address, parsed.master_key, parsed.secret)
    if connect is None:
        address, key = look()
        return _Master(address, key, "")
    address = parse_address(connect, CONTROL_PORT)
    return _Master(address, book.key_of(address), "")


def _joined(
    master: _Master, own: _Self, deadline: float, stack: ExitStack, say: Callable[[str], None]
) -> tuple[ZmqSpoke, str, Address]:
    """The link on which this worker is a member, the master's key, and its numeric address. Raises UserError,
    PeerError."""
    waiting = False
    while True:
        try:
            return _join(master, own, stack, say)
        except PeerError as error:
            if time.monotonic() >= deadline:
                raise
            if not waiting:
                waiting = True
                say(f"{error} (trying again)")
            time.sleep(_RETRY_S)


def _join(
    master: _Master, own: _Self, stack: ExitStack, say: Callable[[str], None]
) -> tuple[ZmqSpoke, str, Address]:
    def show(code: str) -> None:
        say(f"the code of this worker is {code}; on the master:  tpiedge nodes approve {code}")

    key = master.key or pair(master.address, own.keys, own.host, show)
    with ExitStack() as attempt:  # a link that is left open would stand in the way of the next one
        name = peer_name(own.keys.public)
        with _waiting_for(master):
            spoke = attempt.enter_context(
                open_link(master.address, key, own.keys, name, secret=master.secret)
            )
        enrolled = enrol(spoke, own.host, master.secret)
        stack.push(attempt.pop_all())
    say(f"joined {enrolled.cluster} as {enrolled.name}")
    return spoke, key, parse_address(spoke.address.removeprefix("tcp://"))


@contextmanager
def _waiting_for(master: _Master) -> Iterator[None]:
    """A name that means nothing, and somebody else at its address, end a worker at its start, as UserError. A master
    that was found before may be there later, as PeerError."""
    try:
        yield
    except UserError as error:
        raise (PeerError(str(error)) if master.found else error) from None


def _agent(
    own: _Self,
    address: Address,
    master_key: str,
    spoke: ZmqSpoke,
    measurements: Measurements,
    look: Callable[[], WayState],
    standby: Standby,
    say: Callable[[str], None],
) -> Agent:
    clock, name = MonotonicClock(), peer_name(own.keys.public)
    settings = AgentSettings(
        control_address=address.zmq,
        master_key=master_key,
        name=name,
        host=own.host,
        threads=own.threads,
        # What is kept already may be kept on, or make room.
        free_disk_bytes=free_disk_bytes(own.store.folder) + own.store.usage().held_bytes,
        disk_bytes_per_s=own.disk_bytes_per_s,
        keeping=own.keeping,
        locker=own.locker,
    )
    files = FilesMaster(address.beside(FILES_OFFSET).zmq, master_key, own.keys, name)
    provision = Provision(files, own.store, clock, own.local)
    return Agent(
        settings,
        spoke,
        provision,
        provision,
        clock,
        say,
        measurements,
        look,
        own.memory,
        own.memory_limits.usable_bytes,
        standby,
    )
