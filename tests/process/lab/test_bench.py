"""The benchmarks print the fields they promise; their numbers are not asserted."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tests.process.command import Ended, run_command
from tests.process.lab.refused import refusal
from tests.process.network.namespaces import why_impossible
from tpiedge.lab.verbs.bench import bench
from tpiedge.lab.verbs.bench_speed import speed

DEMO = {"model": "demo", "precision": "bf16", "compute": "f32", "kv_precision": "f32"}


def described(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in DEMO}


@pytest.mark.thin
def test_bench_decode_reports_every_setting() -> None:
    ended = run_command(
        *("bench", "decode", "--model", "demo", "--settings", "1x1,2x1", "--prompt-tokens", "8"),
        *("--tokens", "4", "--repeats", "1", "--json"),
    )
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert list(record["settings"]) == ["1x1", "2x1"]
    assert described(record) == DEMO
    for nodes, summary in zip((1, 2), record["settings"].values(), strict=True):
        assert len(summary["peak_rss_bytes"]) == nodes
        assert (
            summary["s_per_token"]["min"] <= summary["s_per_token"]["median"] <= summary["s_per_token"]["max"]
        )
        assert summary["head_s_per_token"]["median"] > 0


@pytest.mark.thin
def test_bench_speed_reports_one_number() -> None:
    """`tpiedge bench` alone is this verb."""
    ended = run_command("bench", "speed", "--seconds", "0.1", "--json")
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert described(record) == DEMO
    assert record["tokens"] >= 7
    assert record["tokens_per_s"] == pytest.approx(record["tokens"] / record["decode_s"])
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(speed, "callback", lambda **flags: called.append(flags["model_name"]))
        assert CliRunner().invoke(bench).exit_code == 0
    assert called == [None]


@pytest.mark.thin
def test_bench_allreduce_measures_and_predicts_every_collective() -> None:
    ended = run_command(
        *("bench", "allreduce", "--nodes", "2,4", "--bytes", "4096", "--rounds", "10", "--wire", "f32,bf16"),
        *("--repeats", "1", "--json"),
    )
    assert ended.status == 0, ended.err
    results = json.loads(ended.out)["results"]
    cases = [(item["nodes"], item["collective"], item["wire"]) for item in results]
    names = ["star", "mesh", "two-shot"]
    assert cases == [(nodes, name, wire) for nodes in (2, 4) for name in names for wire in ("f32", "bf16")]
    for item in results:
        assert 0 < item["seconds"]["min"] <= item["seconds"]["median"] <= item["seconds"]["max"]
        assert item["predicted_s"] > 0
        assert item["testbed"] is None


@pytest.mark.thin
def test_bench_serve_starts_a_server_and_reports_every_load() -> None:
    ended = run_command(
        *("bench", "serve", "--model", "demo", "--threads", "1", "--concurrency", "1,2", "--requests", "3"),
        # Where the cores are busy a few tokens arrive at one time, and have no rate.
        *("--prompt-tokens", "8", "--tokens", "100", "--prefill-tokens", "16", "--long-prompt", "40"),
        *("--repeats", "1", "--json"),
    )
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert described(record) == DEMO
    assert record["prefill"]["prompt_tokens"] == 16
    assert record["prefill"]["tokens_per_s"]["median"] > 0
    assert [load["concurrency"] for load in record["loads"]] == [1, 2]
    for load in record["loads"]:
        assert (load["requests"], load["errors"]) == (3, 0), load["error"]
        assert load["tokens_per_s"]["median"] > 0
        waits = load["first_token_s"]
        assert 0 < waits["p50"]["median"] <= waits["p99"]["median"] <= waits["max"]["median"]
    assert record["loads"][0]["answering_to_prefill"]["median"] > 0
    assert record["long_prompt"]["beside_to_alone"]["median"] > 0


@pytest.mark.timeout(400)  # a cluster for each run
@pytest.mark.parametrize(("what", "nodes"), [pytest.param("restore", 3, marks=pytest.mark.thin), ("park", 1)])
def test_bench_context_reports_figures_with_their_bounds(what: str, nodes: int) -> None:
    ended = run_command(
        *("bench", "context", "--model", "demo", "--what", what, "--nodes", nodes, "--threads", 1),
        *("--prompt-tokens", 150, "--repeats", 1, "--json"),
        limit_s=390,
    )
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert described(record) == DEMO
    assert (record["what"], record["nodes"], record["prompt_tokens"]) == (what, nodes, 128)
    assert record["processor"]
    paged = record["turns"] if what == "park" else record
    assert paged["ratio_bound"] == 1.2
    assert paged["answers"] == (8 if what == "park" else 1)
    for name in ("first_token_s", "disk_bytes_per_s", "bound_s"):
        assert 0 < paged[name]["min"] <= paged[name]["median"] <= paged[name]["max"]
    if what == "restore":
        assert (record["cached_tokens"]["min"], record["without_pages"]) == (128, 0)
        assert record["bytes"]["min"] > 0
        assert record["times_faster"]["median"] > 0
        assert record["times_faster_bound"] == 30
        return
    assert list(record["streams"]["to_room"]) == ["room", "disk", "computed"]
    assert record["streams"]["to_room"]["room"]["median"] == 1
    assert list(record["keeping"]["s_per_token"]) == ["none", "kept"]
    assert record["keeping"]["cost"]["median"] > -1


@pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible()))
def test_testbed_benches_vary_links_and_leave_nothing_up(here: Callable[..., Ended]) -> None:
    ended = run_command(
        *("bench", "allreduce", "--testbed", "pair", "--nodes", "2", "--bytes", "4", "--latency", "1,4"),
        *("--rate", "none", "--collective", "mesh", "--rounds", "20", "--repeats", "2", "--json"),
    )
    assert ended.status == 0, ended.err
    near, far = json.loads(ended.out)["results"]
    assert (near["latency_s"], far["latency_s"], far["rate_bytes_per_s"]) == (0.001, 0.004, None)
    for item in (near, far):
        assert item["seconds"]["min"] > item["latency_s"]
    ended = run_command(
        *("bench", "decode", "--model", "demo", "--testbed", "pair", "--settings", "2x1", "--latency", "3"),
        *("--prompt-tokens", "8", "--tokens", "4", "--repeats", "1", "--json"),
    )
    assert ended.status == 0, ended.err
    (found,) = json.loads(ended.out)["settings"].values()
    assert (found["latency_s"], found["chosen"]) == (0.003, "mesh")
    assert found["s_per_token"]["min"] > found["least_network_s_per_token"] > 0
    up = json.loads(here("testbed", "status", "--json").out)["testbeds"]
    assert "pair" not in [testbed["name"] for testbed in up]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["decode", "--model", "demo", "--settings", "two"], "write NODESxTHREADS"),
        (["allreduce", "--nodes", "1"], "out of range"),
        (["allreduce", "--bytes", "a"], "not a list of numbers"),
        (["allreduce", "--collective", "star,x"], "'x' is none of star"),
        (["allreduce", "--latency", "3"], "give --testbed"),
        (["decode", "--model", "demo", "--rate", "3"], "give --testbed"),
        (["decode", "--model", "demo", "--wire", "f16"], "'f16' is none of f32"),
        (["context", "--what", "park", "--prompt-tokens", "63"], "a page has 64 tokens"),
        (["context", "--what", "park", "--prompt-tokens", "1024"], "leave 975"),
        (["serve"], "no MODEL is given, and no --url"),
        (["serve", "demo", "--concurrency", "a"], "not a list of numbers"),
        (["serve", "demo", "--concurrency", "1", "--rate", "2"], "give --concurrency or --rate"),
        (["serve", "demo", "--latency", "2"], "give --testbed"),
        (["serve", "demo", "--requests", "3"], "--requests 3 leave some of 16 clients without one"),
        (["serve", "demo", "--url", "http://127.0.0.1:1"], "MODEL is of a server that is started here"),
        (["serve", "--url", "http://127.0.0.1:1", "--kv-tokens", "9"], "--kv-tokens is of a server"),
        (["serve", "--url", "https://127.0.0.1"], "without TLS"),
    ],
)
def test_bad_flags_give_a_one_line_error(arguments: list[str], complaint: str) -> None:
    status, words = refusal("bench", *arguments)
    assert status == 2
    assert complaint in words
