"""`GET /metrics` of a master with a worker: every node's counters come with the looks, and grow with the work; and the
board that Grafana shows of it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.process.command import wait_for
from tests.process.serving.serving import START_S, Serving

pytestmark = pytest.mark.usefixtures("serving_on")

BOARD = Path(__file__).parents[4] / "deploy" / "grafana" / "tpiedge.json"
_NAMES = re.compile(r"\b(?:vllm:|tpiedge_)\w+")
_SELECTED = re.compile(r"\b(?P<name>(?:vllm:|tpiedge_)\w+)\{(?P<labels>[^}]*)\}")
_GROUPED = re.compile(r"\bby \((?P<labels>[^)]*)\)")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
#: Prometheus gives them to all that it reads.
_GIVEN = {"job", "instance"}


def samples(cluster: Serving) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of all that the page has."""
    answer = httpx.get(f"{cluster.url}/metrics", trust_env=False, timeout=START_S)
    assert answer.status_code == 200
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def look(cluster: Serving) -> dict[tuple[str, str], float]:
    """The values by metric, and rank, cause or the like."""
    keys = ("rank", "state", "outcome", "of", "cause", "finished_reason", "le")
    return {
        (name.removeprefix("tpiedge_"), next((labels[key] for key in keys if key in labels), "")): value
        for name, labels, value in samples(cluster)
    }


def told(cluster: Serving) -> None:
    """Returns once every node has told its counters."""
    wait_for(lambda: {("node_steps_total", rank) for rank in "01"} <= look(cluster).keys(), START_S)


def test_metrics_of_every_node_grow_with_its_work(cluster: Serving) -> None:
    told(cluster)
    before = look(cluster)
    assert (before["ready", ""], before["nodes", "ready"]) == (1.0, 2.0)
    assert (before["collective", "token"], before["collective", "chunk"]) == (1.0, 1.0)
    cluster.ask("Once upon a time", 8)

    def counted() -> bool:
        now = look(cluster)
        return all(
            now["node_steps_total", rank] > before["node_steps_total", rank]
            and now["node_tokens_total", rank] >= before["node_tokens_total", rank] + 8
            and now["node_sent_bytes_total", rank] > before["node_sent_bytes_total", rank]
            and now["node_ffn_seconds_total", rank] > before["node_ffn_seconds_total", rank]
            for rank in "01"
        )

    wait_for(counted, START_S)
    after = look(cluster)
    assert after["requests_total", "finished"] == before["requests_total", "finished"] + 1
    assert after["generated_tokens_total", ""] == before["generated_tokens_total", ""] + 8
    assert after["node_peak_rss_bytes", "1"] > 100e6
    for name, more in (
        ("time_to_first_token_seconds_count", 1),
        ("inter_token_latency_seconds_count", 7),
        ("e2e_request_latency_seconds_count", 1),
        ("request_generation_tokens_sum", 8),
    ):
        assert after[f"vllm:{name}", ""] == before[f"vllm:{name}", ""] + more


def test_metrics_include_all_that_the_grafana_board_queries(cluster: Serving) -> None:
    """Every metric by its name, and every label by which the board selects or groups it."""
    told(cluster)
    labels: dict[str, set[str]] = {}
    for name, labelled, _ in samples(cluster):
        labels.setdefault(name, set(_GIVEN)).update(labelled)
    found = list(expressions(json.loads(BOARD.read_text(encoding="utf-8"))))
    assert len(found) > 20
    for expression in found:
        names = _NAMES.findall(expression)
        assert names, expression
        assert labels.keys() >= set(names), expression
        for selected in _SELECTED.finditer(expression):
            assert labels[selected["name"]] >= set(_LABEL.findall(selected["labels"])), expression
        for grouped in _GROUPED.finditer(expression):
            wanted = {label.strip() for label in grouped["labels"].split(",")}
            assert all(labels[name] >= wanted for name in names), expression


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
