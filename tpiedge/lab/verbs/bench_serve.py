"""The command `tpiedge bench serve`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.model_names import optional_model_option
from tpiedge.cli.options import (
    MEMORY,
    Location,
    Number,
    arithmetic_options,
    cache_option,
    collective_option,
    is_default,
    kv_option,
    wire_option,
)
from tpiedge.errors import UserError
from tpiedge.host.device import default_threads
from tpiedge.lab.bench.figures import AS_THEY_ARE, Dial, LinkSetting, check_devices, integers, milliseconds
from tpiedge.lab.bench.serve_client import MeasuredServer, ServePrompt, ServerAddress
from tpiedge.lab.bench.serve_cluster import ClusterWish, own_cluster
from tpiedge.lab.bench.serve_run import ServeLoad, ServeWish, check_wish, measure_server, parse_prompts
from tpiedge.lab.testbed.running import emulated, open_testbed
from tpiedge.lab.verbs.flags import repeats_option, testbed_option, words
from tpiedge.launch.child import Place
from tpiedge.local.prepare import prepare
from tpiedge.progress import say
from tpiedge.wire.fields import CollectiveChoice, Compute, KVPrecision, WirePrecision

_PERCENTILES = ("p50", "p90", "p99", "max")


def print_serve_report(record: dict[str, Any]) -> None:
    prefill = record["prefill"]
    click.echo(
        f"a prompt of {prefill['prompt_tokens']} tokens alone: {_plain(prefill['tokens_per_s'], 1)} tokens/s"
    )
    click.echo("")
    rates = ["tokens/s", "while all answer", "of prefill", "requests/s", "errors"]
    print_table(["clients", *rates], [_rates(load) for load in record["loads"]])
    for name, title in (
        ("first_token_s", "ms to the first token"),
        ("between_tokens_s", "ms between tokens"),
    ):
        click.echo("")
        rows = [[_load(load), *_times(load[name])] for load in record["loads"]]
        print_table([title, *_PERCENTILES], rows)
    for load in record["loads"]:
        if load["errors"]:
            click.echo(f"{_load(load)}: {load['errors']} of {load['requests']} failed: {load['error']}")
    if record["long_prompt"] is not None:
        _print_long(record["long_prompt"])


def _rates(load: dict[str, Any]) -> list[str]:
    return [
        _load(load),
        _plain(load["tokens_per_s"], 1),
        _plain(load["answering_tokens_per_s"], 1),
        _plain(load["answering_to_prefill"], 2),
        _plain(load["requests_per_s"], 2),
        str(load["errors"]),
    ]


def _load(load: dict[str, Any]) -> str:
    return f"{load['rate_per_s']:g}/s" if load["concurrency"] is None else str(load["concurrency"])


def _times(found: dict[str, dict[str, float]] | None) -> list[str]:
    return ["-" if found is None else milliseconds(found[name]) for name in _PERCENTILES]


def _plain(found: dict[str, float] | None, digits: int) -> str:
    if found is None:
        return "-"
    median, low, high = (f"{found[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({low}-{high})"


def _print_long(found: dict[str, Any]) -> None:
    click.echo("")
    rows = [
        ["before", *_times(found["between_tokens_normal_s"])],
        ["meanwhile", *_times(found["between_tokens_beside_s"])],
    ]
    title = f"ms between tokens of {found['others']} others"
    print_table([title, *_PERCENTILES], rows)
    click.echo(
        f"a prompt of {found['prompt_tokens']} tokens: {_plain(found['beside_tokens_per_s'], 1)} tokens/s beside them, "
        f"{_plain(found['alone_tokens_per_s'], 1)} alone, {_plain(found['beside_to_alone'], 2)} of it; "
        f"their p99 is {_plain(found['p99_to_normal'], 2)} times as long"
    )


_SMALL_VOCABULARY = 1000
"""A bound of token ids: every model's vocabulary has the ids below."""
_MOST = 1 << 20
_OF_OWN_SERVER = (
    *("workers", "threads", "memory", "context", "parallel", "kv_tokens", "speculate"),
    *("precision", "compute", "kv", "collective", "wire", "testbed_name", "latency", "link_rate"),
)
_NAMES = {"testbed_name": "--testbed", "kv": "--kv-precision"}


@click.command()
@optional_model_option
@click.option("--url", help="Measure this running server, of tpiedge or another one with OpenAI's API.")
@click.option("--api-key", envvar="TPIEDGE_API_KEY", help="API key of the server at --url.")
@click.option(
    "--concurrency", default="1,4,16", show_default=True, help="Numbers of waiting clients, a list."
)
@click.option("--rate", type=Number(0.001, 1000), help="Requests per second, at random, instead of clients.")
@click.option(
    "--requests",
    type=click.IntRange(1, 10_000),
    help="Requests per load and repeat.  [default: 2 per client, at least 4; 32 with --rate]",
)
@click.option("--prompt-tokens", type=click.IntRange(1, _MOST), default=128, show_default=True)
@click.option(
    "--tokens", type=click.IntRange(2, _MOST), default=128, show_default=True, help="Tokens per answer."
)
@click.option(
    "--prompts", type=Location(dir_okay=False, exists=True), help="A file of prompts, one per line."
)
@click.option(
    "--shared-prefix", type=click.IntRange(0, _MOST), default=0, show_default=True,
    help="Tokens of a prefix that all prompts share.",
)  # fmt: skip
@click.option(
    "--prefill-tokens",
    type=click.IntRange(1, _MOST),
    help="Tokens of the prompt that is sent alone.  [default: 512, or --prompt-tokens if more]",
)
@click.option(
    "--long-prompt", type=click.IntRange(2, _MOST), help="Add a prompt of this many tokens beside 3 answers."
)
@repeats_option
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of prompts and arrivals."
)
@click.option(
    "--workers", type=click.IntRange(0, 63), help="Workers.  [default: 0, or a testbed's other devices]"
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads per machine.  [default: cores / machines]"
)
@click.option("--memory", type=MEMORY, help="Memory per machine. Weights that do not fit stream from disk.")
@click.option("--context", type=click.IntRange(1), help="See `tpiedge master`, also for the next three.")
@click.option("--parallel", type=click.IntRange(1))
@click.option("--kv-tokens", type=click.IntRange(1))
@click.option("--speculate")
@arithmetic_options
@kv_option
@collective_option
@wire_option
@testbed_option
@click.option("--latency", type=Number(0, 1e6), help="One-way latency between devices of the testbed, in ms.")
@click.option("--link-rate", type=Number(0, 1e6), help="Rate of the links in Mbit/s; 0 means no limit.")
@json_option
@cache_option
def serve(
    model_name: str | None,
    url: str | None,
    api_key: str | None,
    concurrency: str,
    rate: float | None,
    requests: int | None,
    prompt_tokens: int,
    tokens: int,
    prompts: Path | None,
    shared_prefix: int,
    prefill_tokens: int | None,
    long_prompt: int | None,
    repeats: int,
    seed: int,
    workers: int | None,
    threads: int | None,
    memory: int | None,
    context: int | None,
    parallel: int | None,
    kv_tokens: int | None,
    speculate: str | None,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    collective: CollectiveChoice,
    wire: WirePrecision,
    testbed_name: str | None,
    latency: float | None,
    link_rate: float | None,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Measure a server as clients see it: time to the first token, gaps between tokens, tokens per second.

    Starts `tpiedge master` with MODEL, or measures the server at --url. Every repeat first sends a prompt alone, then
    each load in turn. All random prompts differ. Answers are greedy and have exactly --tokens tokens.
    """
    wish = ServeWish(
        loads=_loads(concurrency, rate),
        requests=requests,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        alone_tokens=prefill_tokens,
        long_prompt=long_prompt,
        shared=shared_prefix,
        prompts=_prompts(prompts),
        repeats=repeats,
        seed=seed,
    )
    check_wish(wish, context)
    if url is not None:
        record = _measure_at(ServerAddress.of_url(url, api_key), model_name, wish)
    else:
        if model_name is None:
            raise UserError("no MODEL is given, and no --url of a server that runs")
        options: dict[str, object] = {
            "--context": context,
            "--parallel": parallel,
            "--kv-tokens": kv_tokens,
            "--speculate": speculate,
            "--precision": precision,
            "--compute": compute,
            "--kv-precision": kv,
            "--collective": collective,
            "--wire": wire,
            "--cache": cache,
        }
        links = LinkSetting(
            None if latency is None else latency / 1e3, None if link_rate is None else link_rate * 1e6 / 8
        )
        model = prepare(model_name, precision, compute, cache, kv)
        with _machines(testbed_name, workers, links) as (count, usual_threads, places):
            machine = {"--threads": threads or usual_threads, "--memory": f"{memory}B" if memory else None}
            lines = ClusterWish(
                words({"--model": model_name} | machine | options),
                count,
                words(machine | {"--model-dir": model.pack.path.absolute()}),
                places,
            )
            with own_cluster(lines) as server:
                found = measure_server(server, model.config.vocab_size, wish, say)
        flags = {flag[2:].replace("-", "_"): value for flag, value in options.items() if value is not None}
        flags.pop("cache", None)
        machines = {"workers": count, "testbed": testbed_name, "memory_bytes": memory}
        record = {**flags, **model.described(), **machines, **found}
    if as_json:
        click.echo(json.dumps(record))
    else:
        print_serve_report(record)


def _loads(concurrency: str, rate: float | None) -> tuple[ServeLoad, ...]:
    if rate is None:
        counts = integers("--concurrency", concurrency, 1, 1024)
        return tuple(ServeLoad(count) for count in dict.fromkeys(counts))
    if not is_default("concurrency"):
        raise UserError(
            "give --concurrency or --rate: clients wait for their answers, or requests come by themselves"
        )
    return (ServeLoad(None, rate),)


def _prompts(path: Path | None) -> tuple[ServePrompt, ...]:
    if path is None:
        return ()
    try:
        return tuple(parse_prompts(path.read_text(encoding="utf-8"), f"--prompts {path}"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read --prompts {path}: {error}") from None


def _measure_at(address: ServerAddress, model_name: str | None, wish: ServeWish) -> dict[str, Any]:
    given = [name for name in _OF_OWN_SERVER if not is_default(name)]
    if given or model_name is not None:
        flag = _NAMES.get(given[0], "--" + given[0].replace("_", "-")) if given else "MODEL"
        raise UserError(f"{flag} is of a server that is started here: leave it out, or --url")
    server = MeasuredServer.at(address)
    found = measure_server(server, server.vocabulary or _SMALL_VOCABULARY, wish, say)
    return {"model": server.model, "url": f"http://{address.host}:{address.port}", **found}


@contextmanager
def _machines(
    name: str | None, workers: int | None, links: LinkSetting
) -> Iterator[tuple[int, int, tuple[Place, ...]]]:
    """Yields (workers, threads per machine, places). With a testbed, this thread is then on its first device."""
    if name is None:
        if links != AS_THEY_ARE:
            raise UserError("--latency and --link-rate vary the links of a testbed: give --testbed")
        count = workers or 0
        yield count, max(1, default_threads() // (count + 1)), ()
        return
    described = emulated(name, None if workers is None else workers + 1)
    check_devices(name, len(described.speeds))
    with (
        open_testbed(name, say=say) as testbed,
        testbed.inside(testbed.devices[0]),
        Dial(testbed).turned(links),
    ):
        places = tuple(device.place for device in testbed.devices[: len(described.speeds)])
        yield len(described.speeds) - 1, described.most_threads, places
