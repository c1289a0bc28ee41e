"""`tpiedge worker` gives this machine's memory and processors to a master."""

import math
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from tpiedge.cli import options
from tpiedge.cli.entry import interrupt_says
from tpiedge.cli.log_writer import serving_until_stopped
from tpiedge.cli.nearby import master_nearby
from tpiedge.cli.options import Location, Number, option
from tpiedge.cli.token import await_token
from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import CONTROL_PORT, FILES_OFFSET, Address, parse_address
from tpiedge.host.device import MemoryLimits, default_threads, free_disk_bytes
from tpiedge.host.private_file import PAGES, private_folder, worker_state
from tpiedge.host.process import LEAST_TO_COMPUTE, check_address_space, check_descriptors
from tpiedge.host.service_manager import ServiceManager
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import load_or_create_keys, peer_name
from tpiedge.joining.pairing_link import pair
from tpiedge.joining.tokens import parse_token
from tpiedge.kv.page_folder import PageFolder
from tpiedge.launch.offer import Measurements, MemoryOffer, disk_bytes_per_s
from tpiedge.launch.slot import NodeSlot
from tpiedge.local.catalogue import shards_folder
from tpiedge.pack.reader import Pack
from tpiedge.pack.store import ShardStore
from tpiedge.shipping.fetcher import FILES_HUB, Provision
from tpiedge.supervision import Supervisor
from tpiedge.transport.endpoint import FILES
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.worker.agent import Agent, AgentSettings, MasterMoved
from tpiedge.worker.masters import TrustedMasters, probe_path

_RETRY_S = 1.0
_BEFORE = "this machine has not joined: the same command tries again (with a new code, if it showed one)"
_MEMBER = "stopped; fetched weights are kept: 'tpiedge worker' joins again, without a token"


@dataclass(frozen=True)
class _Master:
    """The master to join. `key`: None until confirmed. `found`: whether it was reached before."""

    address: Address
    key: str | None
    secret: str = field(repr=False)
    found: bool = False


class _Joining:
    """Joins masters with the state in `folder`. `given`: the flags of `tpiedge worker`."""

    def __init__(
        self, folder: Path, given: Mapping[str, Any], say: Callable[[str], None], manager: ServiceManager
    ) -> None:
        self._manager = manager
        self._given = given
        self._folder = folder
        self._say = say
        self._packs = [Pack.open(path) for path in given["model_dir"]]
        self._host = given["name"] or socket.gethostname()
        self._threads = given["threads"] or default_threads()
        self._store = ShardStore(shards_folder(given["cache"]), given["cache_limit"])
        self._keys = load_or_create_keys(folder)
        self._book = TrustedMasters(folder)
        self._limits = MemoryLimits(given["memory"])
        self._memory = MemoryOffer(self._limits.usable_bytes())
        if shortfall := self._limits.shortfall(self._memory.offered_bytes):
            say(shortfall)

    def master(self, connect: str | None, token: str | None, wait_s: float) -> _Master:
        if token is not None:
            parsed = parse_token(token)
            address = parsed.address if connect is None else parse_address(connect, CONTROL_PORT)
            found = self._book.key_of(address) == parsed.master_key
            return _Master(address, parsed.master_key, parsed.secret, found)
        if connect is None:
            address, key = master_nearby(wait_s, self._book.masters(), self._say)
            return _Master(address, key, "")
        address = parse_address(connect, CONTROL_PORT)
        key = self._book.key_of(address)
        return _Master(address, key, "", found=key is not None)

    def serve(self, master: _Master, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        with ExitStack() as member:
            while True:
                try:
                    self._serve_at_its_address(master, deadline)
                    return
                except MasterMoved as error:
                    self._say(f"{error}: joining it there")
                    member.enter_context(interrupt_says(_MEMBER))
                    # It is waited for without limit, like at its old address.
                    master = _Master(master.address, self._book.key_of(master.address), "", found=True)
                    deadline = math.inf

    def _serve_at_its_address(self, master: _Master, deadline: float) -> None:
        """Raises MasterMoved once the master has another address."""
        self._manager.ready(watched=False)  # to join may take until somebody approves
        with ExitStack() as stack:
            # Imports torch, and perhaps measures, while this process joins.
            measurements = Measurements(self._folder, self._threads)
            clock, usable = MonotonicClock(), self._limits.usable_bytes
            keep_bytes, park_bytes = self._given["keep_bytes"] or 0, self._given["park_bytes"] or 0
            pages = PageFolder(self._folder / PAGES, keep_bytes, park_bytes)
            slot = NodeSlot(self._threads, self._memory, usable, clock, self._say, pages=pages)
            stack.callback(slot.close)
            slot.warm(measure=measurements.recall() is None)
            spoke, key, address = self.joined(master, deadline, stack)
            self._book.remember(master.address, key)
            probe = partial(probe_path, master.address, address, key)
            name = peer_name(self._keys.public)
            settings = AgentSettings(
                control_address=address.zmq,
                master_key=key,
                host=self._host,
                # Kept shards may make room.
                free_disk_bytes=free_disk_bytes(self._store.folder) + self._store.usage().held_bytes,
                disk_bytes_per_s=disk_bytes_per_s(self._folder, self._store.folder),
                pages=pages,
                keeping=options.keeping_of(self._given),
            )
            connect = partial(
                ZmqSpoke,
                address=address.beside(FILES_OFFSET).zmq,
                server_key=key,
                keys=self._keys,
                name=name,
                hub_name=FILES_HUB,
                plane=FILES,
            )
            provision = Provision(connect, self._store, clock, self._packs)
            agent = Agent(
                settings, spoke, provision, clock, self._say, measurements, probe, slot, self._manager.alive
            )
            with interrupt_says(_MEMBER), Supervisor(lambda _: agent.stop()) as supervisor:
                agent.run()
            supervisor.check()

    def joined(self, master: _Master, deadline: float, stack: ExitStack) -> tuple[ZmqSpoke, str, Address]:
        waiting = False
        while True:
            try:
                return self._join(master, stack)
            except PeerError as error:
                if time.monotonic() >= deadline:
                    raise
                if not waiting:
                    waiting = True
                    self._say(f"{error} (retrying)")
                time.sleep(_RETRY_S)

    def _join(self, master: _Master, stack: ExitStack) -> tuple[ZmqSpoke, str, Address]:
        def show(code: str) -> None:
            self._say(f"the code of this worker is {code}; on the master:  tpiedge nodes approve {code}")

        key = master.key or pair(master.address, self._keys, self._host, show)
        name = peer_name(self._keys.public)
        with ExitStack() as attempt:  # an open link would block the next attempt
            try:
                link = open_link(master.address, key, self._keys, name, secret=master.secret)
                spoke = attempt.enter_context(link)
            except UserError as error:
                # At the start a wrong name or another program is final; later the master may come back.
                raise (PeerError(str(error)) if master.found else error) from None
            enrolled = enrol(spoke, self._host, master.secret)
            stack.push(attempt.pop_all())
        self._say(f"joined {enrolled.cluster} as {self._host} ({enrolled.name})")
        return spoke, key, parse_address(spoke.address.removeprefix("tcp://"))


@click.command()
@option(
    "--connect",
    "The master's HOST or HOST:PORT. Without --connect and --token: the master joined last, or one that announces "
    f"itself.  [default port: {CONTROL_PORT}]",
)
@option("--token", "Token that the master printed. Without it, a code to approve at the master is shown.")
@option("--token-file", "File with the token; --wait waits for it.", Location(dir_okay=False))
@options.own_memory_option
@options.keeping_options
@options.page_options
@option("--threads", "Threads of this machine's node.  [default: the cores]", click.IntRange(1, 1024))
@option("--name", "Name of this machine at the master.  [default: its host name]")
@option(
    "--model-dir",
    "Pack on this machine, whose weights are not fetched; repeatable.",
    Location(file_okay=False, exists=True),
    multiple=True,
)
@option("--cache-limit", "Size limit of the kept shards.  [default: the disk]", options.BYTES)
@option("--wait", "Seconds to wait for a master that does not run yet.", Number(0, 86400), 0.0, "wait_s")
@options.state_option
@options.cache_option
def worker(
    connect: str | None, token: str | None, token_file: Path | None, wait_s: float, **given: Any
) -> None:
    check_descriptors()
    check_address_space(LEAST_TO_COMPUTE)
    manager = ServiceManager()
    with serving_until_stopped(_BEFORE) as writer:
        folder = private_folder(worker_state(given["state"]))
        own = _Joining(folder, given, manager.saying(writer.say), manager)
        manager.ready(watched=False)
        try:
            if token is None and token_file is not None:
                token = await_token(token_file, wait_s)
            own.serve(own.master(connect, token, wait_s), wait_s)
        finally:
            manager.stopping()
