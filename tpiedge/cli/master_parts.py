"""The parts of a running master, put together for `tpiedge master`."""

import errno
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.origins import Origins
from tpiedge.api.proxies import Proxies
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.server import ApiServer
from tpiedge.cli.interrupts import Terminated
from tpiedge.cli.master_lines import (
    lan_address,
)
from tpiedge.cli.options import keeping_of
from tpiedge.cli.serving import MasterService
from tpiedge.clock import MonotonicClock
from tpiedge.errors import DiskFull, OutOfMemory, UserError
from tpiedge.host.addresses import (
    DATA_OFFSET,
    FILES_OFFSET,
    PAIRING_OFFSET,
    Address,
    resolve,
)
from tpiedge.host.certificate import Certificate
from tpiedge.host.device import default_threads
from tpiedge.host.memory_limits import MemoryLimits
from tpiedge.host.ports import holder, port_state
from tpiedge.host.private_file import private_folder, replace_private
from tpiedge.host.process_limits import check_descriptors
from tpiedge.joining.entrance import Entrance
from tpiedge.launch.measurements import Measurements, disk_bytes_per_s
from tpiedge.launch.memory_offer import MemoryOffer
from tpiedge.launch.readiness import NOT_MEASURED
from tpiedge.launch.timing import Timing
from tpiedge.local.launch import Layout, chosen_context, chosen_kv_tokens, model_facts_of
from tpiedge.local.paths import LOCKER
from tpiedge.local.prepare import PreparedModel
from tpiedge.master.assignments import Served
from tpiedge.master.master import Master
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.rank_zero import RankZero, RankZeroSettings
from tpiedge.master.seats import SeatFile
from tpiedge.pack.grids import grid_exponents
from tpiedge.pack.identity import manifest_bytes, pack_id
from tpiedge.pack.store.locks import FileLock, holder_of
from tpiedge.planner.arithmetic import computed_apart
from tpiedge.planner.partition import parse_shares
from tpiedge.planner.prediction import Demand, MachineFacts
from tpiedge.planner.reasons import master_too_small
from tpiedge.sanitise import sanitised_line
from tpiedge.shipping.server import ShipServer
from tpiedge.supervision import Supervisor
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.epochs import Capacity
from tpiedge.wire.fields import CollectiveChoice, Compute, KVPrecision, Pin, WirePrecision
from tpiedge.wire.weights import Keeping

RECORDS = "answers"
"""The folder of records below a master's own."""

ANYWHERE = "0.0.0.0"
"""All addresses of this computer."""

_LOCK = ".master.lock"
#: Readers of a master before need as long to come again, whatever machines are waited for.
_LEAST_GRACE_S = 30.0
_REPORT_S = 60.0
_NAME_CHARACTERS = 200
_PURPOSES = {0: "workers", DATA_OFFSET: "tensors", FILES_OFFSET: "files", PAIRING_OFFSET: "pairing"}


@dataclass(frozen=True)
class MasterFlags:
    """What the user asked for, checked as far as that goes without the model."""

    listen: Address
    http: Address
    api_keys: tuple[str, ...]
    api_key_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_self_signed: bool
    origins: Origins
    public_names: tuple[str, ...]
    proxies: Proxies
    share_prefixes: bool
    aliases: tuple[str, ...]
    insecure: bool
    shares: str | None
    min_workers: int
    memory: int | None
    window: tuple[int, int] | None
    pin: Pin
    io: str
    threads: int | None
    precision: str | None
    compute: Compute | None
    kv: KVPrecision | None
    context: int | None
    kv_tokens: int | None
    parallel: int
    speculate: int
    collective: CollectiveChoice
    wire: WirePrecision
    token_file: Path | None
    answer_s: float | None
    recovery_grace_s: float
    spare: str
    journal: bool
    announce: bool
    drain_s: float
    state: Path | None
    cache: Path | None
    descriptors: int = field(default_factory=check_descriptors)

    @cached_property
    def keys(self) -> ApiKeys:
        return ApiKeys(self.api_keys, self.api_key_file)

    @cached_property
    def memory_limits(self) -> MemoryLimits:
        return MemoryLimits(self.memory)

    @cached_property
    def usable_bytes(self) -> int:
        """Memory that this machine's node may use, as of the start."""
        return self.memory_limits.usable_bytes()

    @cached_property
    def offer(self) -> MemoryOffer:
        return MemoryOffer(self.usable_bytes)

    @property
    def keeping(self) -> Keeping:
        return keeping_of(self.window, self.pin, self.io)

    @property
    def node_threads(self) -> int:
        return default_threads() if self.threads is None else self.threads


@contextmanager
def only_master(folder: Path) -> Iterator[None]:
    """Keeps other masters off the members, tokens and address that are in `folder`. Raises UserError where one runs."""
    with FileLock(private_folder(folder) / _LOCK) as lock:
        try:
            alone = lock.try_alone()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull.at(lock.path) from None
            raise UserError(f"cannot lock {lock.path}: {error.strerror}; choose another --state") from None
        if not alone:
            raise UserError(
                f"a master runs already (process {holder_of(lock.path)}) with the state in {folder.parent}: stop it, "
                "or give this one a --state of its own, and other ports with --listen and --http"
            )
        yield


def check_ports(flags: MasterFlags) -> None:
    """Says at once, and not once the model has been prepared, that somebody has a port. Raises UserError."""
    listen = resolve(flags.listen)
    for offset, purpose in _PURPOSES.items():
        _check_port("--listen", listen.beside(offset), f"for {purpose}")
    _check_port("--http", resolve(flags.http), "for the API")


def _check_port(flag: str, address: Address, purpose: str) -> None:
    if port_state(address.port, address.host) == "in use":
        raise UserError(
            f"cannot listen on {address} {purpose}: {holder(address.port).words} has this port; stop it, or give "
            f"another port with {flag}"
        )


@contextmanager
def master_parts(
    flags: MasterFlags,
    model: PreparedModel,
    keys: CurveKeys,
    folder: Path,
    supervisor: Supervisor,
    certificate: Certificate | None,
) -> Iterator[tuple[Master, ApiServer, Entrance]]:
    """The running parts, put together; ended in reverse order."""
    alone = Layout(1, None, flags.node_threads, flags.offer.offered_bytes, flags.keeping)
    context = chosen_context(model, alone, flags.context)
    kv_tokens = chosen_kv_tokens(context, flags.kv_tokens)
    clock, timing = MonotonicClock(), Timing()
    listen = resolve(flags.listen)
    with ExitStack() as stack:
        settings = _rank_zero_settings(listen, keys, flags, folder)
        rank_zero = RankZero(settings, timing, clock, flags.offer, flags.memory_limits.usable_bytes)
        stack.callback(rank_zero.close)
        # Measures at the first start: no worker is let in before the master can answer.
        placement = _placement(flags, model, rank_zero, kv_tokens, folder)
        entrance = stack.enter_context(Entrance(listen, keys, folder, clock))
        files = ShipServer(entrance.files_hub, [model.pack], clock)
        files.start()
        stack.callback(files.close)
        facts = model_facts_of(model)
        served = Served(
            model.pack.path.absolute(),
            pack_id(manifest_bytes(model.pack.path)),
            model.compute,
            capacity_tokens=kv_tokens,
            context_tokens=context,
            sequences=flags.parallel,
            speculate=flags.speculate,
            collective=flags.collective,
            wire=flags.wire,
            kv=model.kv,
            group_size=facts.shape.group_size,
            kv_head_bytes=facts.num_layers * facts.kv_part_bytes / facts.kv_page_tokens,
            grids=grid_exponents(model.pack),
            apart=computed_apart(model.pack.storage, model.config.head_dim)
            if model.pack.precision.quantised
            else "",
        )
        seats, weights = None, placement.weights
        if weights is not None:
            seats = SeatFile(folder, len(weights) - 1)
            stack.callback(seats.close)
        running = Master(
            entrance.hub,
            clock,
            served,
            placement,
            rank_zero,
            entrance,
            timing=timing,
            known=[member.name for member in entrance.members],
            recovery_grace_s=flags.recovery_grace_s,
            stock=flags.spare == "auto",
            arranges=placement,
            seats=seats,
            follow_memory=placement.give,
        )
        service = MasterService(running, entrance, model, flags.aliases, context, supervisor, placement)
        secret = secrets.token_urlsafe(32)
        api = ApiServer(
            service,
            flags.http.host,
            flags.http.port,
            flags.keys,
            secret,
            insecure=flags.insecure,
            tls=None if certificate is None else certificate.context,
            origins=flags.origins,
            limits=replace(
                Limits.of_context(context).of_descriptors(flags.descriptors), answer_s=flags.answer_s
            ),
            records=RecordFolder(folder / RECORDS, served.pack_id) if flags.journal else None,
            grace_s=max(flags.recovery_grace_s, _LEAST_GRACE_S),
            public_names=flags.public_names,
            proxies=flags.proxies,
            share_prefixes=flags.share_prefixes,
        )
        stack.enter_context(_told_of_order(running, api, supervisor))  # after what may yet fail, or hang
        stack.callback(running.close)
        stack.callback(api.close)  # before the other: what answers still lack is left to the next master
        running.start(int(time.time()))
        # Before anybody is answered: the file of a master that was killed has another secret.
        admin = folder / "admin.json"
        workers = str(lan_address(listen))
        note: dict[str, object] = {"url": api.url, "secret": secret, "workers": workers}
        if certificate is not None:
            note["tls_sha256"] = certificate.fingerprint
        replace_private(admin, note)
        stack.callback(admin.unlink, missing_ok=True)
        api.start()
        yield running, api, entrance


@contextmanager
def _told_of_order(running: Master, api: ApiServer, supervisor: Supervisor) -> Iterator[None]:
    """Tells the API where the user alone ended the master, and all of it ended."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        if running.failed is None and supervisor.failure is None:
            api.ended_in_order()
        raise


def _rank_zero_settings(
    listen: Address, keys: CurveKeys, flags: MasterFlags, folder: Path
) -> RankZeroSettings:
    own = Address("127.0.0.1", listen.port) if listen.host == ANYWHERE else listen
    return RankZeroSettings(
        own.zmq,
        keys.public,
        listen.beside(DATA_OFFSET).zmq,
        flags.node_threads,
        locker=folder / LOCKER,
    )


def _placement(
    flags: MasterFlags, model: PreparedModel, rank_zero: RankZero, kv_tokens: int, folder: Path
) -> NodePlacement:
    """Measures this machine on the way. Raises UserError for impossible shares, OutOfMemory where no worker helps."""
    shares = flags.shares
    weights = None if shares is None else parse_shares(shares, len(shares.split(",")))
    facts = model_facts_of(model)
    demand = Demand(facts, kv_tokens, flags.min_workers, sanitised_line(model.public_name, _NAME_CHARACTERS))
    unmeasured = MachineFacts(OWN_NAME, 0.0, rank_zero.memory_bytes, keeping=flags.keeping)
    too_small = master_too_small(demand, unmeasured, weights)
    if too_small is not None:
        raise OutOfMemory(too_small)
    packs = model.pack.path.absolute().parent
    measured = _own_capacity(rank_zero, folder)
    own = replace(
        unmeasured,
        weight_bytes_per_s=measured.speed(facts.quantised),
        disk_bytes_per_s=disk_bytes_per_s(folder, packs) or disk_bytes_per_s(folder, folder),
        head_bytes_per_s=measured.speed(facts.head_quantised),
    )
    return NodePlacement(demand, own, flags.node_threads, weights)


def _own_capacity(rank_zero: RankZero, folder: Path) -> Capacity:
    """What this machine measured of itself, now or before; NOT_MEASURED where it could not."""
    measurements = Measurements(folder, rank_zero.threads)
    report = measurements.recall()
    if report is None:
        report = rank_zero.warm(measure=True).report(time.monotonic() + _REPORT_S)
        if report is None:
            return NOT_MEASURED
        measurements.keep(report)
    return report.capacity
