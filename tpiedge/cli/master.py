"""`tpiedge master`: serve a model over HTTP with this machine and every worker that joins."""

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import click

from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.records import records_in
from tpiedge.cli import master_lines, options
from tpiedge.cli.master_parts import ANYWHERE, RECORDS, check_ports, master_parts, only_master
from tpiedge.cli.model_names import model_option
from tpiedge.cli.nearby import announcing, check_announcing
from tpiedge.cli.options import Location, Number, option
from tpiedge.cli.scribe import serving_until_stopped
from tpiedge.errors import UserError
from tpiedge.host.addresses import CONTROL_PORT, outgoing_host, own_names, parse_address, resolve
from tpiedge.host.certificate import own_certificate, read_certificate
from tpiedge.host.device import MemoryLimits, default_threads
from tpiedge.host.private_file import master_state
from tpiedge.host.process import LEAST_TO_COMPUTE, check_address_space, check_descriptors
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.launch.offer import MemoryOffer
from tpiedge.local.layout import chosen_kv_tokens
from tpiedge.local.prepare import prepare
from tpiedge.master.reconciler import RECOVERY_GRACE_S
from tpiedge.supervision import Supervisor
from tpiedge.units import counted
from tpiedge.wire.fields import MAX_SEQUENCES

_HTTP_PORT = 8080
_THIS_COMPUTER = "127.0.0.1"


def _aliases(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name.strip() or len(name) > 200 or not name.isprintable():
            raise UserError("--alias: a name has 1 to 200 printable characters")
    return names


def _as(read: Callable[..., Any], *more: object) -> Callable[[click.Context, click.Parameter, Any], Any]:
    return lambda _context, _option, value: read(value, *more)


@click.command()
@model_option
@option(
    "--listen",
    "HOST:PORT for workers; the three ports after it are used too.",
    default=f"{ANYWHERE}:{CONTROL_PORT}",
    callback=_as(parse_address, CONTROL_PORT, ANYWHERE),
)
@option(
    "--http",
    "HOST:PORT of the API.",
    default=f"{_THIS_COMPUTER}:{_HTTP_PORT}",
    callback=_as(parse_address, _HTTP_PORT, _THIS_COMPUTER),
)
@option("--min-workers", None, click.IntRange(0, 126), 0)
@option("--shares", "Relative weights: the master's, then the workers' as they join.")
@options.own_memory_option
@options.keeping_options
@option("--threads", "Of this machine's node.  [default: the cores]", click.IntRange(1, 1024))
@options.arithmetic_options
@options.kv_option
@option(
    "--context", "Tokens of a prompt and its answer.  [default: the model's own, where memory allows]", int
)
@option(
    "--parallel", "Requests that are answered at once; others wait.", click.IntRange(1, MAX_SEQUENCES), 16
)
@option(
    "--kv-tokens",
    "Positions of the KV cache for all answers together, at least the context.  [default: the context]",
    int,
)
@options.speculate_option
@options.collective_option
@options.wire_option
@option("--api-key", "Clients must send it; repeatable.", name="api_keys", multiple=True)
@option(
    "--api-key-file",
    "Keys for clients, one a line, with a name before it if you like (phone: KEY); read again when it changes.",
    Location(dir_okay=False),
)
@option(
    "--tls-cert",
    "PEM file with the API's certificate, and those up to its CA's: clients speak https.",
    Location(dir_okay=False),
)
@option("--tls-key", "PEM file with its key, for its owner alone.", Location(dir_okay=False))
@option(
    "--tls-self-signed",
    "https with a certificate that is made once, in the state folder; clients compare its fingerprint.",
    is_flag=True,
)
@option(
    "--cors-origin",
    "Web pages that may use the API; repeatable.",
    name="origins",
    multiple=True,
)
@option(
    "--public-name",
    "What clients may call this server, too, as behind a proxy; repeatable.",
    name="public_names",
    metavar="NAME[:PORT]",
    multiple=True,
)
@option(
    "--trusted-proxy",
    "A proxy whose X-Forwarded-For says who asks; repeatable.",
    name="proxies",
    metavar="ADDRESS[/BITS]",
    multiple=True,
)
@option(
    "--share-prefixes",
    "Beginnings of prompts that were computed for one client are used for all: they can find out each other's.",
    is_flag=True,
)
@option(
    "--alias",
    "What clients may call the model, too; repeatable.",
    name="aliases",
    multiple=True,
    callback=_as(_aliases),
)
@option("--insecure", "Serve other machines without an API key.", is_flag=True)
@option(
    "--token-file", "Keep there, while it runs, a token for any number of workers.", Location(dir_okay=False)
)
@option(
    "--answer-limit",
    "Seconds that an answer may take, its time in the queue included.  [default: as long as there is progress]",
    Number(1, 1e9),
    name="answer_s",
)
@option(
    "--recovery-grace",
    "Seconds that requests wait for lost machines to return, where the others are too few.",
    Number(0, 1e9),
    RECOVERY_GRACE_S,
    "recovery_grace_s",
)
@option(
    "--spare",
    "What else workers fetch to their disks while nobody asks: what they need once another machine is lost.",
    click.Choice(["auto", "off"]),
    "auto",
)
@option(
    "--journal",
    "Record requests and answers under way in the state folder: the next master goes on with them.",
    is_flag=True,
)
@option(
    "--announce",
    "Let workers of the local network find this master (mDNS): its name, port and protocol are told.",
    is_flag=True,
)
@option("--drain", "Seconds.", Number(0, 3600), 10.0, "drain_s")
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
    if flags.tls_self_signed and flags.tls_cert is not None:
        raise UserError(
            "--tls-self-signed makes a certificate of its own: leave --tls-cert and --tls-key out"
        )
    flags.guard = Guard(
        flags.http.host,
        ApiKeys(flags.api_keys, flags.api_key_file),
        flags.secret,
        insecure=flags.insecure,
        origins=flags.origins,
        public_names=flags.public_names,
        proxies=flags.proxies,
        share_prefixes=flags.share_prefixes,
    )
    if flags.context is not None:
        chosen_kv_tokens(flags.context, flags.kv_tokens)  # before the model is prepared, which may take long
    if flags.announce:
        check_announcing(master_lines.lan_address(resolve(flags.listen)))
    folder = master_state(flags.state)
    with (
        only_master(folder),
        serving_until_stopped("workers that are left running join the next start") as scribe,
    ):
        if shortfall := limits.shortfall(flags.offer.offered_bytes):
            scribe.say(shortfall)
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
            master_lines.workers_invited(flags.listen, keys, folder, flags.token_file, scribe.say),
            announcing(master_lines.lan_address(resolve(flags.listen)), keys.public, scribe.say)
            if flags.announce
            else nullcontext(),
        ):
            scribe.say(
                f"serving {model.public_name} at {master_lines.url_for_others(flags.http, api.url)}/v1"
            )
            for line in master_lines.page_lines(flags.http, api.url, master_lines.terminal_columns()):
                scribe.say(line)
            if certificate is not None:
                scribe.say(f"the certificate has the SHA-256 fingerprint {certificate.shown}")
            if api.recovered:
                scribe.say(f"going on with {counted(api.recovered, 'answer')} of the master before")
            if not flags.journal and (left := records_in(folder / RECORDS)):
                scribe.say(
                    f"left in {left[0].parent}: {counted(len(left), 'answer')}; --journal goes on with them"
                )
            try:
                master_lines.watch(running, supervisor, pairing.pending, scribe.say)
            finally:
                running.drain()
                if not running.requests.idle:
                    scribe.say(f"finishing what is under way (up to {flags.drain_s:.0f} s)")
                api.close(flags.drain_s)
