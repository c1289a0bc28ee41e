"""`tpiedge master`: serve a model over HTTP with this machine and every worker that joins."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click

from tpiedge.api.guard import check_bind, public_name
from tpiedge.api.origins import Origins
from tpiedge.api.proxies import Proxies
from tpiedge.api.record_folder import records_in
from tpiedge.api.server import ApiServer
from tpiedge.cli.master_lines import (
    lan_address,
    page_lines,
    terminal_columns,
    url_for_others,
    watch,
    workers_invited,
)
from tpiedge.cli.master_parts import ANYWHERE, RECORDS, MasterFlags, check_ports, master_parts, only_master
from tpiedge.cli.model_names import model_option
from tpiedge.cli.nearby import announcing, check_announcing
from tpiedge.cli.options import (
    arithmetic_options,
    cache_option,
    collective_option,
    keeping_options,
    kv_option,
    own_memory_option,
    speculate_option,
    state_option,
    wire_option,
)
from tpiedge.cli.scribe import serving_until_stopped
from tpiedge.cli.tls import (
    check_server_tls,
    server_certificate,
    tls_cert_option,
    tls_key_option,
    tls_self_signed_option,
)
from tpiedge.cli.types import Location, Number
from tpiedge.host.addresses import (
    CONTROL_PORT,
    parse_address,
    resolve,
)
from tpiedge.host.process_limits import LEAST_TO_COMPUTE, check_address_space
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.local.launch import chosen_kv_tokens
from tpiedge.local.paths import master_state
from tpiedge.local.prepare import prepare
from tpiedge.master.master import RECOVERY_GRACE_S, Master
from tpiedge.supervision import Supervisor
from tpiedge.units import counted
from tpiedge.wire.limits import MAX_SEQUENCES

_HTTP_PORT = 8080
_MOST_S = 1e9
_THIS_COMPUTER = "127.0.0.1"
_PARALLEL = 16
_NAME_CHARACTERS = 200


class _Alias(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip() or len(text) > _NAME_CHARACTERS or not text.isprintable():
            self.fail(f"a name has 1 to {_NAME_CHARACTERS} printable characters", param, ctx)
        return text


def _as(read: Callable[..., Any], *more: object) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that makes of the option's value what the master needs: its errors are UserErrors, in their words."""
    return lambda _context, _option, value: read(value, *more)


@click.command()
@model_option
@click.option(
    "--listen",
    default=f"{ANYWHERE}:{CONTROL_PORT}",
    show_default=True,
    callback=_as(parse_address, CONTROL_PORT, ANYWHERE),
    help="HOST:PORT for workers; the three ports after it are used too.",
)
@click.option(
    "--http",
    default=f"{_THIS_COMPUTER}:{_HTTP_PORT}",
    show_default=True,
    callback=_as(parse_address, _HTTP_PORT, _THIS_COMPUTER),
    help="HOST:PORT of the API.",
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
@click.option(
    "--parallel",
    type=click.IntRange(1, MAX_SEQUENCES),
    default=_PARALLEL,
    show_default=True,
    help="Requests that are answered at once; others wait.",
)
@click.option(
    "--kv-tokens",
    type=int,
    help="Positions of the KV cache for all answers together, at least the context.  [default: the context]",
)
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
    "--cors-origin",
    "origins",
    multiple=True,
    callback=_as(Origins),
    help="Web pages that may use the API; repeatable.",
)
@click.option(
    "--public-name",
    "public_names",
    metavar="NAME[:PORT]",
    multiple=True,
    callback=_as(lambda names: tuple(map(public_name, names))),
    help="What clients may call this server, too, as behind a proxy; repeatable.",
)
@click.option(
    "--trusted-proxy",
    "proxies",
    metavar="ADDRESS[/BITS]",
    multiple=True,
    callback=_as(Proxies),
    help="A proxy whose X-Forwarded-For or Forwarded says who asks; repeatable.",
)
@click.option(
    "--share-prefixes",
    is_flag=True,
    help="Beginnings of prompts that were computed for one client are used for all: they can find out each other's.",
)
@click.option(
    "--alias",
    "aliases",
    type=_Alias(),
    multiple=True,
    help="What clients may call the model, too; repeatable.",
)
@click.option("--insecure", is_flag=True, help="Serve other machines without an API key.")
@click.option(
    "--token-file",
    type=Location(dir_okay=False),
    help="Keep there, while it runs, a token for any number of workers.",
)
@click.option(
    "--answer-limit",
    "answer_s",
    type=Number(1, _MOST_S),
    help="Seconds that an answer may take, its time in the queue included.  [default: as long as there is progress]",
)
@click.option(
    "--recovery-grace",
    "recovery_grace_s",
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
@click.option("--drain", "drain_s", type=Number(0, 3600), default=10.0, show_default=True, help="Seconds.")
@state_option
@cache_option
def master(model_name: str, **given: Any) -> None:
    """Serve MODEL with this machine and the workers that join it."""
    check_address_space(LEAST_TO_COMPUTE)
    flags = MasterFlags(**given)
    limits = flags.memory_limits
    tls = flags.tls_cert, flags.tls_key, flags.tls_self_signed
    check_server_tls(*tls)
    check_bind(flags.http.host, flags.keys, flags.insecure, flags.origins)
    if flags.context is not None:
        chosen_kv_tokens(flags.context, flags.kv_tokens)  # before the model is prepared, which may take long
    if flags.announce:
        check_announcing(lan_address(resolve(flags.listen)))
    folder = master_state(flags.state)
    with (
        only_master(folder),
        serving_until_stopped("workers that are left running join the next start") as scribe,
    ):
        if shortfall := limits.shortfall(flags.usable_bytes):
            scribe.say(shortfall)
        check_ports(flags)
        certificate = server_certificate(*tls, folder)
        keys = load_or_create_keys(folder)
        model = prepare(model_name, flags.precision, flags.compute, flags.cache, flags.kv)
        with (
            Supervisor() as supervisor,
            master_parts(flags, model, keys, folder, supervisor, certificate) as (running, api, entrance),
            workers_invited(flags.listen, keys, folder, flags.token_file, scribe.say),
            announcing(lan_address(resolve(flags.listen)), keys.public, scribe.say)
            if flags.announce
            else nullcontext(),
        ):
            scribe.say(f"serving {model.public_name} at {url_for_others(flags.http, api.url)}/v1")
            for line in page_lines(flags.http, api.url, terminal_columns()):
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
                watch(running, supervisor, entrance.pending, scribe.say)
            finally:
                _drain(running, api, flags.drain_s, scribe.say)


def _drain(running: Master, api: ApiServer, limit_s: float, say: Callable[[str], None]) -> None:
    """Answer what was accepted, for a while."""
    running.drain()
    if not running.idle:
        say(f"finishing what is under way (up to {limit_s:.0f} s)")
    api.close(limit_s)
