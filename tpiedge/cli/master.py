"""`tpiedge master`: serves a model over HTTP with all workers that join."""

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import click

from tpiedge.api.guard import Guard, is_loopback
from tpiedge.api.keys import ApiKeys
from tpiedge.api.records import records_in
from tpiedge.cli import master_lines, options
from tpiedge.cli.log_writer import serving_until_stopped
from tpiedge.cli.master_parts import ANYWHERE, RECORDS, check_ports, master_parts, only_master
from tpiedge.cli.model_names import model_option
from tpiedge.cli.nearby import announcing, check_announcing
from tpiedge.cli.options import Location, Number, option
from tpiedge.cli.pulling import offer_pull
from tpiedge.errors import UserError
from tpiedge.host.addresses import CONTROL_PORT, HTTP_PORT, outgoing_host, own_names, parse_address, resolve
from tpiedge.host.certificate import own_certificate, read_certificate
from tpiedge.host.device import MemoryLimits, default_threads
from tpiedge.host.private_file import api_keys, kept_secret, master_state
from tpiedge.host.process import LEAST_TO_COMPUTE, check_address_space, check_descriptors
from tpiedge.host.service_manager import ServiceManager
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.launch.offer import MemoryOffer
from tpiedge.local.layout import chosen_kv_tokens
from tpiedge.local.prepare import prepare
from tpiedge.master.page_keys import PageSecrets
from tpiedge.master.reconciler import RECOVERY_GRACE_S
from tpiedge.supervision import Supervisor
from tpiedge.wire.fields import MAX_SEQUENCES

_THIS_COMPUTER = "127.0.0.1"


def _aliases(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name.strip() or len(name) > 200 or not name.isprintable():
            raise UserError("--alias: a name has 1 to 200 printable characters")
    return names


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def _as(read: Callable[..., Any], *more: object) -> Callable[[click.Context, click.Parameter, Any], Any]:
    return lambda _context, _option, value: read(value, *more)


@click.command()
@model_option
@option(
    "--listen",
    "HOST:PORT for workers; the four ports after it are used too.",
    default=f"{ANYWHERE}:{CONTROL_PORT}",
    callback=_as(parse_address, CONTROL_PORT, ANYWHERE),
)
@option(
    "--http",
    "HOST:PORT of the API.",
    default=f"{_THIS_COMPUTER}:{HTTP_PORT}",
    callback=_as(parse_address, HTTP_PORT, _THIS_COMPUTER),
)
@option("--min-workers", "Workers to wait for, and to use even if slower.", click.IntRange(0, 126), 0)
@option("--shares", "Relative shares (3,1,2): the master's, then the workers' as they join.")
@options.own_memory_option
@options.keeping_options
@options.page_options
@option("--threads", "Threads of this machine's node.  [default: the cores]", click.IntRange(1, 1024))
@options.arithmetic_options
@options.kv_option
@option(
    "--context", "Tokens of a prompt with its answer.  [default: the model's own, where memory allows]", int
)
@option(
    "--parallel", "Requests answered at the same time; others wait.", click.IntRange(1, MAX_SEQUENCES), 16
)
@option(
    "--kv-tokens",
    "Tokens of the KV cache, for all requests together.  [default: the context]",
    int,
)
@options.speculate_option
@options.collective_option
@options.wire_option
@option("--api-key", "Key that clients must send; repeatable.", name="api_keys", multiple=True)
@option(
    "--api-key-file",
    "API keys, one per line, each with an optional name (phone: KEY); read again when it changes.  [default: the keys "
    "of 'tpiedge keys', if other machines may use the API]",
    Location(dir_okay=False),
)
@option(
    "--tls-cert",
    "PEM file with the certificate chain of the API, which then speaks https.",
    Location(dir_okay=False),
)
@option(
    "--tls-key", "PEM file with the certificate's key, readable only by its owner.", Location(dir_okay=False)
)
@option(
    "--tls-self-signed",
    "https with a self-signed certificate, made once; clients compare its fingerprint.",
    is_flag=True,
)
@option(
    "--cors-origin",
    "Origin of web pages that may use the API; repeatable.",
    name="origins",
    multiple=True,
)
@option(
    "--public-name",
    "Another host name of this server, such as its proxy's; repeatable.",
    name="public_names",
    metavar="NAME[:PORT]",
    multiple=True,
)
@option(
    "--trusted-proxy",
    "Proxy whose X-Forwarded-For names the client; repeatable.",
    name="proxies",
    metavar="ADDRESS[/BITS]",
    multiple=True,
)
@option(
    "--share-prefixes",
    "Share the prefix cache between clients, who can then detect each other's prompts.",
    is_flag=True,
)
@option(
    "--alias",
    "Another name of the model; repeatable.",
    name="aliases",
    multiple=True,
    callback=_as(_aliases),
)
@option(
    "--switch",
    "Whether requests may name this computer's other models (tpiedge ls), which are then served in turns.",
    click.Choice(["auto", "off"]),
    "auto",
)
@option("--models", "The only other models that requests may name: NAME,NAME.", callback=_as(_listed))
@option(
    "--idle-unload",
    "Seconds without requests after which the weights leave the memory of all machines; the next request loads them. "
    " [default: never]",
    Number(1, 1e9),
    name="unload_s",
)
@option("--insecure", "Serve other machines without an API key.", is_flag=True)
@option(
    "--token-file",
    "File for a token for any number of workers, while the master runs.",
    Location(dir_okay=False),
)
@option(
    "--answer-limit",
    "Seconds that a request may take, queueing included.  [default: no limit while it progresses]",
    Number(1, 1e9),
    name="answer_s",
)
@option(
    "--recovery-grace",
    "Seconds that requests wait for lost machines if the others cannot serve the model.",
    Number(0, 1e9),
    RECOVERY_GRACE_S,
    "recovery_grace_s",
)
@option(
    "--spare",
    "Whether idle workers fetch the weights that they need if another machine is lost.",
    click.Choice(["auto", "off"]),
    "auto",
)
@option(
    "--journal",
    "Record running requests in the state folder, so that a restarted master resumes them.",
    is_flag=True,
)
@option(
    "--announce",
    "Announce this master's name, port and protocol by mDNS, so that workers find it.",
    is_flag=True,
)
@option("--drain", "Seconds to finish running requests at the end.", Number(0, 3600), 10.0, "drain_s")
@options.state_option
@options.cache_option
def master(model_name: str, **given: Any) -> None:
    check_address_space(LEAST_TO_COMPUTE)
    limits = MemoryLimits(given["memory"])
    flags = SimpleNamespace(
        **given,
        secret=secrets.token_urlsafe(32),
        keeping=options.keeping_of(given),
        node_threads=given["threads"] or default_threads(),
        usable_bytes=limits.usable_bytes,
        offer=MemoryOffer(limits.usable_bytes()),
        descriptors=check_descriptors(),
    )
    if (flags.tls_cert is None) != (flags.tls_key is None):
        raise UserError("--tls-cert and --tls-key go together: give both")
    if flags.switch == "off" and flags.models is not None:
        raise UserError(
            "--models names models to switch to, and --switch off allows none: leave one of them out"
        )
    if flags.tls_self_signed and flags.tls_cert is not None:
        raise UserError(
            "--tls-self-signed makes a certificate of its own: leave --tls-cert and --tls-key out"
        )
    folder = master_state(flags.state)
    if not (flags.api_key_file or flags.api_keys or flags.insecure or is_loopback(flags.http.host)):
        made = api_keys(flags.state)
        flags.api_key_file = made if made.exists() else None
    kept = kept_secret(folder) if flags.keep_bytes else None
    flags.pages = PageSecrets(secrets.token_bytes(32), kept)
    flags.guard = Guard(
        flags.http.host,
        ApiKeys(flags.api_keys, flags.api_key_file),
        flags.secret,
        insecure=flags.insecure,
        origins=flags.origins,
        public_names=flags.public_names,
        proxies=flags.proxies,
        share_prefixes=flags.share_prefixes,
        scope_key=flags.pages.scope_key,
    )
    if flags.context is not None:
        chosen_kv_tokens(flags.context, flags.kv_tokens)  # before the model is prepared, which may take long
    if flags.announce:
        check_announcing(master_lines.lan_address(resolve(flags.listen)))
    offer_pull(model_name, flags.cache)
    manager = ServiceManager()
    with (
        only_master(folder),
        serving_until_stopped("running workers join again at the next start") as writer,
    ):
        if shortfall := limits.shortfall(flags.offer.offered_bytes):
            writer.say(shortfall)
        check_ports(flags.listen, flags.http)
        certificate = None
        if flags.tls_cert is not None:
            certificate = read_certificate(flags.tls_cert, flags.tls_key)
        elif flags.tls_self_signed:
            own = (*sorted(own_names()), outgoing_host() or _THIS_COMPUTER)
            certificate = own_certificate(folder, dict.fromkeys(("localhost", _THIS_COMPUTER, "::1", *own)))
        keys = load_or_create_keys(folder)
        model = prepare(model_name, flags.precision, flags.compute, flags.cache, flags.kv)
        with (
            Supervisor() as supervisor,
            master_parts(flags, model, keys, folder, supervisor, certificate) as (running, api, pairing),
            master_lines.workers_invited(flags.listen, keys, folder, flags.token_file) as invited,
            announcing(master_lines.lan_address(resolve(flags.listen)), keys.public, writer.say)
            if flags.announce
            else nullcontext(),
        ):
            left = [] if flags.journal else records_in(folder / RECORDS)
            needs_key = bool(flags.api_keys or flags.api_key_file)
            for line in (
                *master_lines.start_lines(model.public_name, flags.http, api, certificate, left),
                *master_lines.next_lines(flags.http, api.url, needs_key, invited),
                *master_lines.admin_lines(api.url, flags.guard.admin),
            ):
                writer.say(line)
            try:
                master_lines.watch(running, supervisor, pairing.pending, writer.say, manager)
            finally:
                manager.stopping()
                running.drain()
                if not running.requests.idle:
                    manager.saying(writer.say)(f"finishing running requests (up to {flags.drain_s:.0f} s)")
                api.close(flags.drain_s)
