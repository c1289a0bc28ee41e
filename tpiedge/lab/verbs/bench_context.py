"""The command `tpiedge bench context`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.model_names import optional_model_option
from tpiedge.cli.options import MEMORY, arithmetic_options, cache_option, kv_option
from tpiedge.errors import UserError
from tpiedge.host.device import default_threads
from tpiedge.host.process import cpu_name
from tpiedge.lab.bench.context_runs import ContextWish, measure_park, measure_restore, more_tokens
from tpiedge.lab.verbs.flags import repeats_option, words
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.model.source import DEMO
from tpiedge.planner.needs import model_facts
from tpiedge.progress import say
from tpiedge.units import format_bytes
from tpiedge.wire.fields import Compute, KVPrecision

_PROMPT = 4096


def print_context_report(record: Mapping[str, Any]) -> None:
    click.echo(f"{record['processor']}; {record['disk'] or 'unknown disk'}")
    if not record["disk_is_direct"]:
        click.echo("the file system refuses direct reads: the page cache may have answered some of them")
    if record["what"] == "restore":
        click.echo(f"computed: {_plain(record['computed_s'], 's')}")
        _print_pages("after a restart", record)
        bound = record["times_faster_bound"]
        click.echo(f"times faster than computing: {_plain(record['times_faster'])}; bound: {bound:g}")
        return
    turns = record["turns"]
    click.echo(f"{turns['conversations']} conversations in turn; the memory holds {turns['in_memory']}")
    _print_pages("a further turn", turns)
    streams, keeping = record["streams"], record["keeping"]
    rows = [
        [name, _plain(rate), _plain(streams["to_room"][name])]
        for name, rate in streams["tokens_per_s"].items()
    ]
    print_table([f"{streams['streams']} streams", "tokens/s", "of room"], rows)
    click.echo(f"bound of disk: {streams['disk_to_room_bound']:g} of room")
    for name, seconds in keeping["s_per_token"].items():
        click.echo(f"an answer alone, {name}: {_plain(seconds, 's')} per token")
    cost = {name: 100 * value for name, value in keeping["cost"].items()}
    click.echo(f"keeping costs {_plain(cost, '%')}; bound: {100 * keeping['cost_bound']:g} %")


def _print_pages(name: str, found: Mapping[str, Any]) -> None:
    nbytes, rate = found["bytes"]["median"], found["disk_bytes_per_s"]["median"]
    click.echo(
        f"{name}: {_plain(found['first_token_s'], 's')} to the first token; "
        f"{found['cached_tokens']['median']:.0f} tokens were not computed"
    )
    click.echo(
        f"pages: {format_bytes(nbytes)} at {format_bytes(rate)}/s, {_plain(found['disk_s'], 's')}; they took "
        f"{_plain(found['ratio'])} times as long; bound: {found['ratio_bound']:g}"
    )
    click.echo(
        f"{found['within_bound']} of {found['answers']} answers within the bound; "
        f"{found['without_pages']} read no page"
    )


def _plain(found: Mapping[str, float] | None, unit: str = "") -> str:
    if found is None:
        return "-"
    median, low, high = (f"{found[name]:.3g}" for name in ("median", "min", "max"))
    return f"{median}{unit and ' ' + unit} ({low}-{high})"


@click.command()
@optional_model_option
@click.option(
    "--what",
    type=click.Choice(["restore", "park"]),
    required=True,
    help="restore: prompts after a restart of all processes, beside computing them. park: conversations and streams "
    "that the KV cache in memory does not hold, and what keeping costs an answer.",
)
@click.option("--nodes", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of machines.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads per machine.  [default: cores / machines]"
)
@click.option("--memory", type=MEMORY, help="Memory per machine. Weights that do not fit stream from disk.")
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1, 1 << 20),
    help="Tokens of a prompt or of a conversation, rounded down to whole pages. A stream has a sixteenth.  "
    f"[default: {_PROMPT}, or what the model's context allows]",
)
@arithmetic_options
@kv_option
@repeats_option
@json_option
@cache_option
def context(
    model_name: str | None,
    what: Literal["restore", "park"],
    nodes: int,
    threads: int | None,
    memory: int | None,
    prompt_tokens: int | None,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    repeats: int,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Measure a KV cache on disk: first tokens, beside the time that the disk takes for as many bytes.

    Starts a master, and workers on this computer, with new state in the folder for temporary files. MODEL defaults to
    the bundled demo model. The disk is measured before and after the answers whose files it reads.
    """
    name = model_name or DEMO
    model = prepare(name, precision, compute, cache, kv)
    count = threads or max(1, default_threads() // nodes)
    of_machine = {"--threads": count, "--memory": f"{memory}B" if memory else None}
    of_master = {
        "--model": name,
        "--precision": precision,
        "--compute": compute,
        "--kv-precision": kv,
        "--cache": cache,
    }
    page_tokens = model_facts(model.pack, compute=model.compute, kv=model.kv).kv_page_tokens
    wish = ContextWish(
        machine=words(of_machine),
        master=words(of_master),
        worker=("--model-dir", str(model.pack.path.absolute())),
        nodes=nodes,
        vocabulary=model.config.vocab_size,
        page_tokens=page_tokens,
        prompt_tokens=_tokens(prompt_tokens, model, page_tokens, repeats),
        repeats=repeats,
    )
    found = (measure_restore if what == "restore" else measure_park)(wish, say)
    record = {
        "what": what,
        **model.described(),
        "nodes": nodes,
        "threads": count,
        "memory_bytes": memory,
        "page_tokens": page_tokens,
        "prompt_tokens": wish.prompt_tokens,
        "repeats": repeats,
        "processor": cpu_name(),
        **found,
    }
    if as_json:
        click.echo(json.dumps(record))
    else:
        print_context_report(record)


def _tokens(wanted: int | None, model: PreparedModel, page: int, repeats: int) -> int:
    """Returns the tokens of a prompt: whole pages of `page` tokens. Raises UserError."""
    positions = model.config.context_tokens
    most = positions - more_tokens(repeats)
    tokens = (min(_PROMPT, most) if wanted is None else wanted) // page * page
    if not 0 < tokens <= most:
        raise UserError(
            f"--prompt-tokens {wanted or tokens} is out of range: a page has {page} tokens, and with --repeats "
            f"{repeats} the model's {positions} positions leave {max(0, most)}"
        )
    return tokens
