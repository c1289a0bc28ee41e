"""Starts and connects the parts of a running master."""

import errno
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from tpiedge.api.install import InstallServer
from tpiedge.api.limits import Limits
from tpiedge.api.records import RecordFolder
from tpiedge.api.server import ApiServer
from tpiedge.cli.entry import Terminated
from tpiedge.cli.master_lines import lan_address
from tpiedge.cli.token import install_lines
from tpiedge.clock import MonotonicClock
from tpiedge.errors import OutOfMemory, ResourceError, UserError, cannot_write
from tpiedge.host.addresses import (
    DATA_OFFSET,
    FILES_OFFSET,
    INSTALL_OFFSET,
    PAIRING_OFFSET,
    PURPOSES,
    Address,
    holder,
    port_state,
    resolve,
)
from tpiedge.host.certificate import Certificate
from tpiedge.host.private_file import ADMIN, MASTER_LOCK, PAGES, private_folder, replace_private
from tpiedge.joining.connecting import MASTER
from tpiedge.joining.pairing_link import PairingHub
from tpiedge.joining.registrar import Registrar, unknown_peer_policy
from tpiedge.joining.tokens import DAY_S, JoinToken, TokenStore
from tpiedge.kv.page_folder import PageFolder
from tpiedge.launch.bootstrap import NOT_MEASURED, NodeBootstrap, Timing
from tpiedge.launch.offer import Measurements, disk_bytes_per_s
from tpiedge.local.distribution import INSTALL, make_installer
from tpiedge.local.layout import Layout, chosen_context, chosen_kv_tokens, model_facts_of
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.local.served_models import ServedModel, ServedModels, served_model
from tpiedge.local.service import Service
from tpiedge.master.assignments import Served
from tpiedge.master.master import Master
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.session_manager import RankZero
from tpiedge.master.turns import Hosted
from tpiedge.pack.files import FileLock, holder_of
from tpiedge.pack.reader import PackHold
from tpiedge.planner.arithmetic import computed_apart
from tpiedge.planner.capacity import master_too_small
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.prediction import MachineFacts
from tpiedge.planner.solve import parse_shares
from tpiedge.sanitise import sanitised_line
from tpiedge.shipping.fetcher import FILES_HUB
from tpiedge.shipping.server import ShipServer
from tpiedge.supervision import Supervisor
from tpiedge.transport.endpoint import CONTROL, FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.epochs import Capacity

RECORDS = "answers"  # name of the answers' folder in the master's

ANYWHERE = "0.0.0.0"


@contextmanager
def only_master(folder: Path) -> Iterator[None]:
    """Locks the master's `folder` during the block. Raises UserError if another master uses it."""
    with FileLock(private_folder(folder) / MASTER_LOCK) as lock:
        try:
            alone = lock.try_alone()
        except OSError as error:
            words = f"cannot lock {lock.path}: {error.strerror}; choose another --state"
            raise cannot_write(lock.path, error, words) from None
        if not alone:
            raise UserError(
                f"a master already runs (process {holder_of(lock.path)}) with the state in {folder.parent}: 'tpiedge "
                "use MODEL' switches its model; else stop it, or give this one its own --state, --listen and --http"
            )
        yield


def check_ports(listen: Address, http: Address) -> None:
    """Raises UserError if a port is taken, ResourceError if this computer lacks the address. Call it before slow
    work."""
    ports = [("--listen", resolve(listen).beside(offset), purpose) for offset, purpose in PURPOSES.items()]
    for flag, address, purpose in [*ports, ("--http", resolve(http), "the API")]:
        state = port_state(address.port, address.host)
        if state == os.strerror(errno.EADDRNOTAVAIL):
            # Not the exit status of bad input: a service tries again, since the network may come later.
            raise ResourceError(
                f"cannot listen on {address} for {purpose}: this computer does not have this address now; give one "
                f"that it has with {flag}"
            )
        if state == "in use":
            raise UserError(
                f"cannot listen on {address} for {purpose}: {holder(address.port)} has this port; stop it, or "
                f"give another port with {flag}"
            )


@contextmanager
def master_parts(
    flags: SimpleNamespace,
    model: PreparedModel,
    keys: CurveKeys,
    folder: Path,
    supervisor: Supervisor,
    certificate: Certificate | None,
) -> Iterator[tuple[Master, ApiServer, PairingHub]]:
    clock, timing = MonotonicClock(), Timing()
    listen = resolve(flags.listen)
    with ExitStack() as stack:
        own = Address("127.0.0.1", listen.port) if listen.host == ANYWHERE else listen
        data, unset = listen.beside(DATA_OFFSET).zmq, CurveKeys("", "")
        threads = flags.node_threads
        pages = PageFolder(folder / PAGES, flags.keep_bytes or 0, flags.park_bytes or 0)
        template = NodeBootstrap(
            0, 0, own.zmq, keys.public, unset, timing, data, str(model.pack.path.absolute())
        )
        rank_zero = RankZero(threads, flags.offer, flags.usable_bytes, clock, pages=pages, bootstrap=template)
        stack.callback(rank_zero.close)
        # Measures at the first start: no worker joins before the master can answer.
        hosting = _Hosting(flags, rank_zero, folder, _measured(rank_zero, folder))
        context = hosting.context(model, flags.context)
        hosted = hosting.hosted(model, context, chosen_kv_tokens(context, flags.kv_tokens))
        hub = stack.enter_context(
            ZmqHub(listen.zmq, keys, MASTER, {}, plane=CONTROL, unknown=unknown_peer_policy(folder))
        )
        files_hub = stack.enter_context(
            ZmqHub(listen.beside(FILES_OFFSET).zmq, keys, FILES_HUB, {}, plane=FILES, io_threads=2)
        )
        registrar = Registrar(hub, keys.public, folder, beside=[files_hub])
        stack.callback(registrar.close)
        pairing = PairingHub(listen.beside(PAIRING_OFFSET).zmq, keys.public, registrar.admit, clock)
        stack.callback(pairing.close)
        install = InstallServer(make_installer(folder / INSTALL), listen.beside(INSTALL_OFFSET))
        stack.callback(install.close)
        files = ShipServer(files_hub, [model.pack], clock)
        files.start()
        stack.callback(files.close)
        running = Master(
            hub,
            clock,
            hosted.served,
            hosted.plan,
            rank_zero,
            registrar,
            timing=timing,
            known=[member.name for member in registrar.journal.table.members],
            recovery_grace_s=flags.recovery_grace_s,
            prefetch=flags.spare == "auto",
        )

        holds: dict[Path, PackHold] = {}  # once served, a pack must not be deleted

        def open_pack(path: Path) -> ServedModel:
            other = prepare(str(path), None, None, flags.cache, flags.kv)
            length = hosting.context(other, flags.context and min(flags.context, other.config.context_tokens))
            described = served_model(other, length)
            running.add_model(hosting.hosted(other, length, max(length, flags.kv_tokens or 0)))
            files.add(other.pack)
            holds[path] = PackHold(path)
            return described

        only = [] if flags.switch == "off" else flags.models
        first = served_model(model, context, flags.aliases)
        models = ServedModels(first, model.pack.path, flags.cache, only, open_pack, running.models_in_use)
        offered = models.offered
        records = RecordFolder(folder / RECORDS, *(one.digest for one in offered)) if flags.journal else None

        @stack.push  # runs after what may fail or hang for a request
        def tell_order(kind: type[BaseException] | None, *_: object) -> None:
            failed = running.failed or supervisor.failure
            if records is not None and failed is None and kind in (KeyboardInterrupt, Terminated):
                records.ended_in_order()

        def invite() -> dict[str, object]:
            workers = lan_address(listen)  # now: at a computer's start the network may come later
            _, secret = TokenStore(folder).create(DAY_S)
            token = JoinToken(keys.public, secret, workers)
            ports = [workers.beside(offset).port for offset in PURPOSES]
            return {"lines": install_lines(folder, workers, token.text), "ports": ports}

        service = Service(running, registrar, pairing, models, supervisor, pages, invite)
        api = ApiServer(
            service,
            flags.guard,
            flags.http,
            Limits.of_context(max(one.context_tokens for one in offered), flags.descriptors, flags.answer_s),
            tls=None if certificate is None else certificate.context,
            records=records,
            grace_s=max(flags.recovery_grace_s, 30.0),  # readers of the previous master need it to come back
        )
        stack.callback(running.close)
        stack.callback(api.close)  # first: the next master resumes unfinished answers
        running.keep_weights(flags.unload_s or math.inf)
        running.start(int(time.time()))
        # Before the API starts: a killed master's file holds another secret.
        admin = folder / ADMIN
        note: dict[str, object] = {"url": api.url, "secret": flags.secret, "workers": str(listen)}
        note["http"] = str(flags.http)
        note["api_key_file"] = str(flags.api_key_file.resolve()) if flags.api_key_file else ""
        if certificate is not None:
            note["tls_sha256"] = certificate.fingerprint
        replace_private(admin, note)
        stack.callback(admin.unlink, missing_ok=True)
        install.start()
        api.start()
        yield running, api, pairing


def _measured(rank_zero: RankZero, folder: Path) -> Capacity:
    measurements = Measurements(folder, rank_zero.threads)
    report = measurements.recall()
    if report is None and (report := rank_zero.warm(measure=True).report(time.monotonic() + 60.0)):
        measurements.keep(report)
    return report.capacity if report else NOT_MEASURED


@dataclass(frozen=True)
class _Hosting:
    flags: SimpleNamespace
    rank_zero: RankZero
    folder: Path
    measured: Capacity

    def context(self, model: PreparedModel, wanted: int | None) -> int:
        flags = self.flags
        alone = Layout(1, None, flags.node_threads, flags.offer.offered_bytes, flags.keeping)
        return chosen_context(model, alone, wanted)

    def hosted(self, model: PreparedModel, context: int, kv_tokens: int) -> Hosted:
        """Raises UserError, or OutOfMemory if workers cannot help."""
        flags = self.flags
        facts = model_facts_of(model, kv_tokens, sanitised_line(model.public_name, 200))
        served = Served(
            model.pack.path.absolute(),
            model.pack.id,
            model.compute,
            capacity_tokens=kv_tokens,
            context_tokens=context,
            sequences=flags.parallel,
            speculate=flags.speculate,
            collective=flags.collective,
            wire=flags.wire,
            kv=model.kv,
            group_size=model.config.group_size,
            kv_head_bytes=facts.position_bytes * model.config.group_size / facts.shape.heads,
            grids=model.grids,
            name=facts.name,
            apart=computed_apart(model.pack.storage, model.config.head_dim),
            pages=flags.pages,
        )
        return Hosted(served, self._placement(facts, served.pack.parent))

    def _placement(self, facts: ModelFacts, packs: Path) -> NodePlacement:
        flags, folder, shares = self.flags, self.folder, self.flags.shares
        weights = None if shares is None else parse_shares(shares, len(shares.split(",")))
        own = MachineFacts(
            self.measured.speed(facts.int8),
            self.rank_zero.memory_bytes,
            name=OWN_NAME,
            keeping=flags.keeping,
            disk_bytes_per_s=disk_bytes_per_s(folder, packs) or disk_bytes_per_s(folder, folder),
            head_speed=self.measured.speed(facts.head_int8),
            keep_bytes=flags.keep_bytes or 0,
            park_bytes=flags.park_bytes or 0,
        )
        too_small = master_too_small(facts, own, weights)
        if too_small is not None:
            raise OutOfMemory(too_small)

        def now() -> MachineFacts:
            return replace(own, memory_bytes=self.rank_zero.memory_bytes)

        return NodePlacement(facts, now, flags.node_threads, weights, flags.min_workers)
