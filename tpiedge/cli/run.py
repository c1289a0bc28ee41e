"""`tpiedge run` and `tpiedge demo` run a local cluster for one command."""

import contextlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tpiedge.cli import options
from tpiedge.cli.conversation import ANSWER_TOKENS, Screen, converse, messages_of
from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.local_chat import LocalBackend, answer_json, positions, tell_summary
from tpiedge.cli.model_names import TESTBED, model_option
from tpiedge.cli.options import Location, is_default, option
from tpiedge.cli.pulling import offer_pull
from tpiedge.cli.sampling_flags import TOKEN_IDS, sampling_of, sampling_options, token_ids, with_usual
from tpiedge.engine.sampling import check_sampling
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.local.cluster import collect, launch, plan_json
from tpiedge.local.layout import Devices, Layout, chosen_context, plan_cluster, roomy_context
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.model.output import OutputForm
from tpiedge.model.source import DEMO
from tpiedge.tracing.collection import Collection, Joined
from tpiedge.units import counted, format_bytes, format_seconds
from tpiedge.wire.fields import Compute
from tpiedge.wire.requests import GenerationRequest

_CONTINUED_TOKENS = 128

_testbed_option = option(
    "--testbed",
    "Run the nodes on the devices of this testbed (see 'tpiedge testbed ls'); root only.",
    TESTBED,
    name="testbed_name",
    metavar="NAME",
)


@click.command()
@model_option
@options.argument_too(
    "prompt",
    "One message, or text to continue if the model has no chat template. Without it, a chat starts.",
)
@option("--system", "System prompt of a chat.")
@options.arithmetic_options
@option("--memory", "Limit per node; weights that do not fit stream from disk.", options.MEMORY)
@option(
    "--context",
    "Tokens of the KV cache.  [default: as needed; in a chat the model's own, where memory allows]",
    int,
)
@option(
    "--max-tokens",
    f"Limit per answer.  [default: {_CONTINUED_TOKENS} of continued text, {ANSWER_TOKENS} of a chat]",
    int,
)
@sampling_options
@option("--stop", "Stop before this text; repeatable.", multiple=True)
@option("--raw", "Continue the text of --prompt, without the chat template.", is_flag=True)
@json_option
@option("--threads", "Threads per node.  [default: the cores divided by the nodes]", int)
@options.kv_option
@options.keeping_options
@options.speculate_option
@options.state_option
@options.cache_option
@option("--prompt-ids", "Token ids to continue: 1,2,3.")
@option("--ignore-eos", "Continue after the end-of-text token.", is_flag=True)
@option("--prompt-logprobs", "Report the prompt's own log probabilities (--json).", is_flag=True)
@click.option(
    "--nodes", type=int, default=1, help="Number of processes.  [default: 1, or all devices of --testbed]"
)
@option(
    "--shares", "Relative shares, one per node: 3,1,2; A:F gives attention and FFN apart.  [default: even]"
)
@options.collective_option
@options.wire_option
@_testbed_option
@option(
    "--trace",
    "Write a trace of all nodes, for 'tpiedge trace' and ui.perfetto.dev.",
    Location(dir_okay=False),
    metavar="FILE",
)
def run(
    model_name: str, nodes: int, prompt: str | None, system: str | None, as_json: bool, **flags: Any
) -> None:
    # Checked before packing, which may take long.
    given = flags["prompt_ids"]
    ids = None if given is None else token_ids(given)
    chats = prompt is None and ids is None
    if prompt is not None and ids is not None:
        raise UserError("give either --prompt or --prompt-ids, not both")
    if flags["raw"] and prompt is None:
        raise UserError("--raw needs --prompt")
    if system is not None and (flags["raw"] or ids is not None):
        raise UserError("--system goes before a message: not with --raw or --prompt-ids")
    if as_json and chats:
        raise UserError("--json needs --prompt or --prompt-ids")
    if (flags["prompt_logprobs"] or flags["logprobs"]) and not as_json:
        raise UserError("--logprobs and --prompt-logprobs need --json, which prints them")
    testbed = _emulated(flags["testbed_name"], None if is_default("nodes") else nodes)
    layout = Layout(
        nodes if testbed is None else len(testbed.speeds),
        flags["shares"],
        flags["threads"],
        flags["memory"],
        options.keeping_of(flags),
        testbed,
        flags["collective"],
        flags["wire"],
        flags["speculate"],
    )
    layout.check()
    if flags["max_tokens"] is not None and not 1 <= flags["max_tokens"] < TOKEN_IDS:
        raise UserError(f"--max-tokens {flags['max_tokens']} is out of range: 1 to {TOKEN_IDS - 1}")
    if "" in flags["stop"]:
        raise UserError("--stop is empty: leave it out, or give some text")
    sampling = sampling_of(flags)
    offer_pull(model_name, flags["cache"])
    with recording(flags["trace"], layout.nodes) as traces:
        model = prepare(model_name, flags["precision"], flags["compute"], flags["cache"], flags["kv"])
        check_sampling(sampling, model.config.vocab_size)
        if chats:
            sampling = with_usual(sampling, model.usual_sampling)
            _ = model.template  # a model without one is refused before anything starts
            capacity = chosen_context(model, layout, flags["context"])
            plan = plan_cluster(model, layout, capacity)
            with launch(model, layout, plan, capacity, traces) as cluster:
                converse(LocalBackend(cluster, model, capacity, sampling, flags), system, flags["state"])
            return
        is_message = bool(prompt) and not flags["raw"] and model.has_template
        if is_message:
            ids = model.message_ids(messages_of(system, prompt or ""))
        elif ids is None:
            if prompt and system is not None:
                raise UserError(
                    f"--system goes before a message, for which {model.name} has no chat template"
                )
            ids = tuple(model.tokenizer.encode(prompt or ""))
        tokens = flags["max_tokens"] or _CONTINUED_TOKENS
        if is_message and flags["max_tokens"] is None:
            tokens = _room(model, layout, len(ids))
        capacity = positions(model, flags["context"], ids, tokens)
        tokenizer = model.tokenizer if model.has_tokenizer else None
        if tokenizer is None and flags["stop"]:
            raise UserError(f"--stop needs a tokenizer, which {model.name} lacks")
        plan = plan_cluster(model, layout, capacity)
        request = GenerationRequest(
            id="run",
            prompt_ids=ids,
            max_tokens=capacity - len(ids),
            sampling=sampling,
            stop_ids=model.end_ids,
            ignore_eos=flags["ignore_eos"],
            prompt_scores=flags["prompt_logprobs"],
        )
        show = (lambda _text: None) if as_json else Screen().show
        with launch(model, layout, plan, capacity, traces) as cluster:
            speech = model.speech if is_message else OutputForm()
            answer = collect(
                cluster, request, tokenizer, flags["stop"], show, goes_on=not is_message, speech=speech
            )
            if not as_json:
                click.echo("" if tokenizer else ",".join(map(str, answer.token_ids)))
            stats = cluster.stats()
        if as_json:
            described = plan_json(model, layout, plan, capacity, cluster.routing)
            click.echo(json.dumps(answer_json(model, request, answer, stats, described)))
        else:
            tell_summary(answer, stats, sampling)


def _room(model: PreparedModel, layout: Layout, prompt_tokens: int) -> int:
    own = model.config.context_tokens
    usual, least = (min(prompt_tokens + tokens, own) for tokens in (ANSWER_TOKENS, _CONTINUED_TOKENS))
    return max(1, roomy_context(model, layout, usual, least) - prompt_tokens)


def _emulated(given: str | None, nodes: int | None) -> Devices | None:
    found: Devices | None = None
    if given is not None:
        found = pkgutil.resolve_name("tpiedge.lab.testbed.running:emulated")(given, nodes)
    return found


@contextlib.contextmanager
def recording(path: Path | None, nodes: int) -> Iterator[tuple[Path, ...]]:
    """Yields trace files by rank, which are joined into `path` afterwards. Raises UserError, DiskFull."""
    if path is None:
        yield ()
        return
    with Collection(path) as collection:
        try:
            yield tuple(collection.part(rank) for rank in range(nodes))
        except BaseException:
            with contextlib.suppress(TpiedgeError):
                _tell(path, collection.join(nodes))
            raise
        _tell(path, collection.join(nodes))


def _tell(path: Path, joined: Joined) -> None:
    words = f"{counted(joined.events, 'event')} in {path}" if joined.events else "nothing was recorded"
    if joined.dropped:
        words += f"; {counted(joined.dropped, 'later one')} had no room"
    words += "".join(f"; node {rank} left none" for rank in joined.missing)
    click.echo(f"trace: {words}", err=True)


@click.command()
@click.option("--prompt", default="Once upon a time", show_default=True)
@click.option("--max-tokens", type=click.IntRange(1, 400), default=200, show_default=True)
@options.arithmetic_options
@_testbed_option
@options.cache_option
def demo(
    prompt: str,
    max_tokens: int,
    precision: str | None,
    compute: Compute | None,
    testbed_name: str | None,
    cache: Path | None,
) -> None:
    testbed = _emulated(testbed_name, None)
    nodes = 3 if testbed is None else min(3, len(testbed.speeds))
    model = prepare(DEMO, precision, compute, cache)
    layout = Layout(nodes, "3,2,1"[: 2 * nodes - 1], 1, None, testbed=testbed)
    prompt_ids = tuple(model.tokenizer.encode(prompt))
    capacity = positions(model, None, prompt_ids, max_tokens)
    plan = plan_cluster(model, layout, capacity)
    tokens = capacity - len(prompt_ids)
    request = GenerationRequest("demo", prompt_ids, tokens, stop_ids=model.end_ids)
    click.echo(f"Starting {nodes} processes, joined by encrypted links ...", err=True)
    with launch(model, layout, plan, capacity) as cluster:
        click.echo(prompt, nl=False)
        answer = collect(
            cluster, request, model.tokenizer, (), lambda text: click.echo(text, nl=False), goes_on=True
        )
        click.echo("\n")
        stats = cluster.stats()
    rows = [
        [
            str(node.rank),
            f"{counted(len(share.along('attention')), 'head')}, {counted(len(share.along('ffn')), 'FFN tile')}",
            *(format_bytes(count) for count in (node.peak_rss_bytes, node.bytes_sent)),
            *(format_seconds(seconds) for seconds in (node.compute_s, node.reduce_wait_s)),
        ]
        for share, node in zip(plan.shares, stats, strict=True)
    ]
    print_table(["node", "share", "peak memory", "sent", "compute", "wait"], rows)
    if answer.s_per_token:
        click.echo(f"\n{counted(len(answer.token_ids), 'token')}, {1 / answer.s_per_token:.0f} tokens/s")
