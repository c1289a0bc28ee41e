"""`tpiedge master`: serve a model over HTTP with this machine and every worker that joins."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import click

from tpiedge.api.guard import check_bind
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.origins import Origins
from tpiedge.api.record_folder import RecordFolder, records_in
from tpiedge.api.server import ApiServer
from tpiedge.cli.ending import serving_until_stopped
from tpiedge.cli.first_lines import (
    lan_address,
    page_lines,
    terminal_columns,
    url_for_others,
    workers_invited,
)
from tpiedge.cli.model_names import model_option
from tpiedge.cli.nearby import announcing, check_announcing
from tpiedge.cli.network_options import collective_option, wire_option
from tpiedge.cli.options import arithmetic_options, keeping_of, keeping_options, kv_option, own_memory_option
from tpiedge.cli.path_options import cache_option, state_option
from tpiedge.cli.serving import MasterService
from tpiedge.cli.serving_options import alias_option, kv_tokens_option, parallel_option, speculate_option
from tpiedge.cli.tls_options import ServerTls, tls_cert_option, tls_key_option, tls_self_signed_option
from tpiedge.cli.types import Location, Number
from tpiedge.cli.watching import watch
from tpiedge.clock import MonotonicClock
from tpiedge.errors import UserError
from tpiedge.host.address_space import LEAST_TO_COMPUTE, check_address_space
from tpiedge.host.addresses import (
    CONTROL_PORT,
    DATA_OFFSET,
    FILES_OFFSET,
    PAIRING_OFFSET,
    Address,
    parse_address,
    resolve,
)
from tpiedge.host.certificate import Certificate
from tpiedge.host.descriptors import check_descriptors
from tpiedge.host.device import default_memory_bytes, default_threads
from tpiedge.host.ports import holder, port_state
from tpiedge.host.private_file import private_folder, replace_private
from tpiedge.joining.entrance import Entrance
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.launch.measurements import Measurements, disk_bytes_per_s
from tpiedge.launch.readiness import NOT_MEASURED
from tpiedge.launch.timing import Timing
from tpiedge.local.launch import Layout, model_facts_of
from tpiedge.local.paths import LOCKER, master_state
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.local.usual_context import chosen_context, chosen_kv_tokens
from tpiedge.master.assignments import Served
from tpiedge.master.master import RECOVERY_GRACE_S, Master
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.planner_thread import PlannerThread
from tpiedge.master.rank_zero import RankZero, RankZeroSettings
from tpiedge.pack.grids import grid_exponents
from tpiedge.pack.identity import manifest_bytes, pack_id
from tpiedge.pack.store.locks import FileLock, holder_of
from tpiedge.planner.arithmetic import computed_apart
from tpiedge.planner.partition import parse_shares
from tpiedge.planner.prediction import Demand, MachineFacts
from tpiedge.sanitise import sanitised_line
from tpiedge.shipping.server import ShipServer
from tpiedge.supervision import Supervisor
from tpiedge.transport.keys import CurveKeys
from tpiedge.units import counted
from tpiedge.wire.epochs import Capacity
from tpiedge.wire.fields import CollectiveChoice, Compute, KVPrecision, Pin, WirePrecision
from tpiedge.wire.weights import Keeping

__all__ = ["master"]

_LOCK = ".master.lock"
_RECORDS = "answers"
#: Readers of a master before need as long to come again, whatever machines are waited for.
_LEAST_GRACE_S = 30.0
_HTTP_PORT = 8080
_REPORT_S = 60.0
_MOST_S = 1e9
_NAME_CHARACTERS = 200
_ANYWHERE = "0.0.0.0"
_THIS_COMPUTER = "127.0.0.1"
_PURPOSES = {0: "workers", DATA_OFFSET: "tensors", FILES_OFFSET: "files", PAIRING_OFFSET: "pairing"}


@dataclass(frozen=True)
class _Flags:
    """What the user asked for, checked as far as that goes without the model."""

    listen: Address
    http: Address
    keys: ApiKeys
    origins: Origins
    aliases: tuple[str, ...]
    insecure: bool
    shares: str | None
    min_workers: int
    memory_bytes: int
    keeping: Keeping
    threads: int
    context: int | None
    kv_tokens: int | None
    parallel: int
    speculate: int
    collective: CollectiveChoice
    wire: WirePrecision
    answer_s: float | None
    recovery_grace_s: float
    stock: bool
    journal: bool
    descriptors: int


@click.command()
@model_option
@click.option(
    "--listen",
    default=f"{_ANYWHERE}:{CONTROL_PORT}",
    show_default=True,
    help="HOST:PORT for workers; the three ports after it are used too.",
)
@click.option(
    "--http", default=f"{_THIS_COMPUTER}:{_HTTP_PORT}", show_default=True, help="HOST:PORT of the API."
)
@click.option("--min-workers", type=click.IntRange(0, 126), default=0, show_default=True)
@click.option("--shares", help="Relative weights: the master's, then the workers' as they join.")
@own_memory_option
@keeping_options
@click.option("--threads", type=click.IntRange(1, 1024), help="Of this machine's node.  [default: the cores]")
@arithmetic_options
@kv_option
@click.option(
    "--context",
    type=int,
    help="Tokens of a prompt and its answer.  [default: the model's own, where memory allows]",
)
@parallel_option
@kv_tokens_option
@speculate_option
@collective_option
@wire_option
@click.option("--api-key", "api_keys", multiple=True, help="Clients must send it; repeatable.")
@click.option(
    "--api-key-file",
    type=Location(dir_okay=False),
    help="Keys for clients, one a line, with a name before it if you like (phone: KEY); read again when it changes.",
)
@tls_cert_option
@tls_key_option
@tls_self_signed_option
@click.option(
    "--cors-origin", "cors_origins", multiple=True, help="Web pages that may use the API; repeatable."
)
@alias_option
@click.option("--insecure", is_flag=True, help="Serve other machines without an API key.")
@click.option(
    "--token-file",
    type=Location(dir_okay=False),
    help="Keep there, while it runs, a token for any number of workers.",
)
@click.option(
    "--answer-limit",
    type=Number(1, _MOST_S),
    help="Seconds that an answer may take, its time in the queue included.  [default: as long as there is progress]",
)
@click.option(
    "--recovery-grace",
    type=Number(0, _MOST_S),
    default=RECOVERY_GRACE_S,
    show_default=True,
    help="Seconds that requests wait for lost machines to return, where the others are too few.",
)
@click.option(
    "--spare",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="What else workers fetch to their disks while nobody asks: what they need once another machine is lost.",
)
@click.option(
    "--journal",
    is_flag=True,
    help="Record requests and answers under way in the state folder: the next master goes on with them.",
)
@click.option(
    "--announce",
    is_flag=True,
    help="Let workers of the local network find this master (mDNS): its name, port and protocol are told.",
)
@click.option("--drain", type=Number(0, 3600), default=10.0, show_default=True, help="Seconds.")
@state_option
@cache_option
def master(
    model_name: str,
    listen: str,
    http: str,
    min_workers: int,
    shares: str | None,
    memory: int | None,
    window: tuple[int, int] | None,
    pin: Pin,
    io: str,
    threads: int | None,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    context: int | None,
    parallel: int,
    kv_tokens: int | None,
    speculate: int,
    collective: CollectiveChoice,
    wire: WirePrecision,
    api_keys: tuple[str, ...],
    api_key_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_self_signed: bool,
    cors_origins: tuple[str, ...],
    aliases: tuple[str, ...],
    insecure: bool,
    token_file: Path | None,
    answer_limit: float | None,
    recovery_grace: float,
    spare: str,
    journal: bool,
    announce: bool,
    drain: float,
    state: Path | None,
    cache: Path | None,
) -> None:
    """Serve MODEL with this machine and the workers that join it."""
    check_address_space(LEAST_TO_COMPUTE)
    flags = _Flags(
        listen=parse_address(listen, CONTROL_PORT, _ANYWHERE),
        http=parse_address(http, _HTTP_PORT, _THIS_COMPUTER),
        keys=ApiKeys(api_keys, api_key_file),
        origins=Origins(cors_origins),
        aliases=aliases,
        insecure=insecure,
        shares=shares,
        min_workers=min_workers,
        memory_bytes=default_memory_bytes() if memory is None else memory,
        keeping=keeping_of(window, pin, io),
        threads=default_threads() if threads is None else threads,
        context=context,
        kv_tokens=kv_tokens,
        parallel=parallel,
        speculate=speculate,
        collective=collective,
        wire=wire,
        answer_s=answer_limit,
        recovery_grace_s=recovery_grace,
        stock=spare == "auto",
        journal=journal,
        descriptors=check_descriptors(),
    )
    tls = ServerTls(tls_cert, tls_key, tls_self_signed)
    check_bind(flags.http.host, flags.keys, flags.insecure, flags.origins)
    if context is not None:
        chosen_kv_tokens(context, kv_tokens)  # before the model is prepared, which may take long
    if announce:
        check_announcing(lan_address(resolve(flags.listen)))
    folder = master_state(state)
    with (
        _only_master(folder),
        serving_until_stopped("workers that are left running join the next start") as scribe,
    ):
        _check_ports(flags)
        certificate = tls.certificate(folder)
        keys = load_or_create_keys(folder)
        model = prepare(model_name, precision, compute, cache, kv)
        with (
            Supervisor() as supervisor,
            _serving(flags, model, keys, folder, supervisor, certificate) as (running, api, entrance),
            workers_invited(flags.listen, keys, folder, token_file, scribe.say),
            announcing(lan_address(resolve(flags.listen)), scribe.say) if announce else nullcontext(),
        ):
            scribe.say(f"serving {model.name} at {url_for_others(flags.http, api.url)}/v1")
            for line in page_lines(flags.http, api.url, terminal_columns()):
                scribe.say(line)
            if certificate is not None:
                scribe.say(f"the certificate has the SHA-256 fingerprint {certificate.shown}")
            if api.recovered:
                scribe.say(f"going on with {counted(api.recovered, 'answer')} of the master before")
            if not journal and (left := records_in(folder / _RECORDS)):
                scribe.say(
                    f"left in {left[0].parent}: {counted(len(left), 'answer')}; --journal goes on with them"
                )
            try:
                watch(running, supervisor, entrance.pending, scribe.say)
            finally:
                _drain(running, api, drain, scribe.say)


@contextmanager
def _only_master(folder: Path) -> Iterator[None]:
    """Keeps other masters off the members, tokens and address that are in `folder`. Raises UserError where one runs."""
    with FileLock(private_folder(folder) / _LOCK) as lock:
        try:
            alone = lock.try_alone()
        except OSError as error:
            raise UserError(f"cannot lock {lock.path}: {error.strerror}; choose another --state") from None
        if not alone:
            raise UserError(
                f"a master runs already (process {holder_of(lock.path)}) with the state in {folder.parent}: stop it, "
                "or give this one a --state of its own, and other ports with --listen and --http"
            )
        yield


def _check_ports(flags: _Flags) -> None:
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
def _serving(
    flags: _Flags,
    model: PreparedModel,
    keys: CurveKeys,
    folder: Path,
    supervisor: Supervisor,
    certificate: Certificate | None,
) -> Iterator[tuple[Master, ApiServer, Entrance]]:
    """The running parts, put together; ended in reverse order."""
    alone = Layout(1, None, flags.threads, flags.memory_bytes, flags.keeping)
    context = chosen_context(model, alone, flags.context)
    kv_tokens = chosen_kv_tokens(context, flags.kv_tokens)
    clock, timing = MonotonicClock(), Timing()
    listen = resolve(flags.listen)
    with ExitStack() as stack:
        rank_zero = RankZero(_rank_zero_settings(listen, keys, flags, folder), timing)
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
        plan = PlannerThread(placement, entrance.hub.wake)
        running = Master(
            entrance.hub,
            clock,
            served,
            plan,
            rank_zero,
            entrance,
            timing=timing,
            known=[member.name for member in entrance.members],
            recovery_grace_s=flags.recovery_grace_s,
            plan_ahead=plan.ahead,
            stock=flags.stock,
            arranges=placement,
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
            records=RecordFolder(folder / _RECORDS, served.pack_id) if flags.journal else None,
            grace_s=max(flags.recovery_grace_s, _LEAST_GRACE_S),
        )
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


def _rank_zero_settings(listen: Address, keys: CurveKeys, flags: _Flags, folder: Path) -> RankZeroSettings:
    own = Address("127.0.0.1", listen.port) if listen.host == _ANYWHERE else listen
    return RankZeroSettings(
        own.zmq,
        keys.public,
        listen.beside(DATA_OFFSET).zmq,
        flags.threads,
        flags.memory_bytes,
        locker=folder / LOCKER,
    )


def _placement(
    flags: _Flags, model: PreparedModel, rank_zero: RankZero, kv_tokens: int, folder: Path
) -> NodePlacement:
    """Measures this machine on the way. Raises UserError for impossible shares."""
    shares = flags.shares
    weights = None if shares is None else parse_shares(shares, len(shares.split(",")))
    facts = model_facts_of(model)
    packs = model.pack.path.absolute().parent
    measured = _own_capacity(rank_zero, folder)
    own = MachineFacts(
        OWN_NAME,
        measured.speed(facts.quantised),
        flags.memory_bytes,
        disk_bytes_per_s=disk_bytes_per_s(folder, packs) or disk_bytes_per_s(folder, folder),
        keeping=flags.keeping,
        head_bytes_per_s=measured.speed(facts.head_quantised),
    )
    demand = Demand(facts, kv_tokens, flags.min_workers, sanitised_line(model.name, _NAME_CHARACTERS))
    return NodePlacement(demand, own, flags.threads, weights)


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


def _drain(running: Master, api: ApiServer, limit_s: float, say: Callable[[str], None]) -> None:
    """Answer what was accepted, for a while."""
    running.drain()
    if not running.idle:
        say(f"finishing what is under way (up to {limit_s:.0f} s)")
    api.close(limit_s)
