"""The benchmarks run and print what they promise; their numbers are nobody's assertion."""

import json

import pytest

from tests.process.command import run_command


def test_bench_decode_reports_every_setting() -> None:
    ended = run_command(
        *("bench", "decode", "--model", "demo", "--settings", "1x1,2x1", "--prompt-tokens", "8"),
        *("--tokens", "4", "--repeats", "1", "--json"),
    )
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert list(record["settings"]) == ["1x1", "2x1"]
    for nodes, summary in zip((1, 2), record["settings"].values(), strict=True):
        assert len(summary["peak_rss_bytes"]) == nodes
        assert (
            summary["s_per_token"]["min"] <= summary["s_per_token"]["median"] <= summary["s_per_token"]["max"]
        )
        assert 0 < summary["head_s_per_token"]["median"] < summary["s_per_token"]["median"]


def test_bench_allreduce_reports_every_payload() -> None:
    ended = run_command(
        *("bench", "allreduce", "--nodes", "2,3", "--bytes", "4,4096", "--rounds", "10"),
        *("--repeats", "1", "--json"),
    )
    assert ended.status == 0, ended.err
    results = json.loads(ended.out)["results"]
    assert [(item["nodes"], item["bytes"]) for item in results] == [(2, 4), (2, 4096), (3, 4), (3, 4096)]
    assert all(item["seconds"]["median"] > 0 for item in results)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["decode", "--model", "demo", "--settings", "two"], "write NODESxTHREADS"),
        (["allreduce", "--nodes", "1"], "out of range"),
        (["allreduce", "--bytes", "a"], "not a list of numbers"),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], complaint: str) -> None:
    ended = run_command("bench", *arguments)
    assert ended.status == 2
    assert ended.err.startswith("tpiedge: ")
    assert ended.err.count("\n") == 1
    assert complaint in ended.err
