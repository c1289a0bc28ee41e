from dataclasses import fields

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tpiedge.api.metrics import metrics_page
from tpiedge.master.counters import Counted
from tpiedge.master.history import LOSS_CAUSES, PLAN_CAUSES, PlanHistory
from tpiedge.master.request_times import (
    PAUSE_CAUSES,
    RequestHistograms,
    Timeline,
    Totals,
)
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.wire.control import Stats

STATS = Stats(
    epoch=3,
    rank=1,
    peak_rss_bytes=250_000_000,
    weight_bytes=92_000_000,
    kv_bytes=1_000_000,
    disk_read_bytes=18_446_744_073_709_551_615,
    bytes_sent=7,
    bytes_received=8,
    compute_s=3.0,
    attention_s=1.25,
    ffn_s=1.75,
    reduce_wait_s=0.5,
    weight_wait_s=0.125,
    load_s=2.5,
    reads=40,
    prefetch_hits=38,
    stalls=2,
    steps=5,
    tokens=12,
    head_s=0.0,
    dropped=6,
    refused=9,
    kv_pages=16,
    kv_pages_used=5,
    drafted=20,
    accepted=13,
    window_bytes=4_000_000,
    kv_reserved_bytes=2_000_000,
    brought_bytes=3_000_000,
    left_bytes=1_000_000,
    brought_pages=3,
    left_pages=1,
    bring_s=0.5,
    leave_s=0.25,
    evicted_pages=15,
)


def node(name: str, rank: int | None, state: str, counters: Stats | None) -> NodeStatus:
    counted = Counted(counters, counters, 0.0) if counters is not None else None
    return NodeStatus(name, rank, state, (0, 1), (0, 1), 2, 0, 0.0, 0, 0.1, counted=counted)


def page(status: ClusterStatus, model: str = "babbler") -> list[str]:
    text = metrics_page(status, model).decode()
    assert text.endswith("\n")
    return text.splitlines()


def lines(*nodes: NodeStatus) -> list[str]:
    totals = Totals(4, 1, 2, prompt_tokens=30, cached_tokens=12, brought_tokens=9, tokens=50, cut=3)
    status = ClusterStatus(True, "", nodes, queued=2, running=16, epoch=3, totals=totals, keeps_context=True)
    return page(status)


def test_metrics_show_cluster_state_and_request_counts() -> None:
    found = lines(
        node("master", 0, "ready", None), node("w-1", 1, "ready", None), node("w-2", None, "spare", None)
    )
    for line in (
        "tpiedge_ready 1.0",
        "tpiedge_epoch 3.0",
        'tpiedge_nodes{state="ready"} 2.0',
        'tpiedge_nodes{state="spare"} 1.0',
        "tpiedge_requests_waiting 2.0",
        "tpiedge_requests_running 16.0",
        'tpiedge_requests_total{outcome="finished"} 4.0',
        'tpiedge_requests_total{outcome="failed"} 1.0',
        'tpiedge_requests_total{outcome="cancelled"} 2.0',
        "tpiedge_prompt_tokens_total 30.0",
        "tpiedge_cached_prompt_tokens_total 12.0",
        "tpiedge_brought_prompt_tokens_total 9.0",
        "tpiedge_keeps_context 1.0",
        "tpiedge_generated_tokens_total 50.0",
    ):
        assert line in found


def test_node_counters_are_exported_only_after_stats_arrive() -> None:
    found = lines(node("master", 0, "ready", None), node("w-1", 1, "ready", STATS))
    labels = '{node="w-1",rank="1"}'
    for line in (
        f"tpiedge_node_disk_read_bytes_total{labels} 1.8446744073709552e+19",
        f"tpiedge_node_disk_reads_total{labels} 40.0",
        f"tpiedge_node_disk_busy_seconds_total{labels} 2.5",
        f"tpiedge_node_kv_brought_bytes_total{labels} 3e+06",
        f"tpiedge_node_kv_brought_pages_total{labels} 3.0",
        f"tpiedge_node_kv_bring_seconds_total{labels} 0.5",
        f"tpiedge_node_kv_left_bytes_total{labels} 1e+06",
        f"tpiedge_node_kv_left_pages_total{labels} 1.0",
        f"tpiedge_node_kv_leave_seconds_total{labels} 0.25",
        f"tpiedge_node_kv_evicted_pages_total{labels} 15.0",
        f"tpiedge_node_prefetch_hits_total{labels} 38.0",
        f"tpiedge_node_stall_seconds_total{labels} 0.125",
        f"tpiedge_node_attention_seconds_total{labels} 1.25",
        f"tpiedge_node_ffn_seconds_total{labels} 1.75",
        f"tpiedge_node_reduce_seconds_total{labels} 0.5",
        f"tpiedge_node_dropped_messages_total{labels} 6.0",
        f"tpiedge_node_refused_messages_total{labels} 9.0",
        f"tpiedge_node_kv_pages{labels} 16.0",
        f"tpiedge_node_kv_pages_used{labels} 5.0",
        f"tpiedge_node_drafted_tokens_total{labels} 20.0",
        f"tpiedge_node_accepted_tokens_total{labels} 13.0",
        f"tpiedge_node_peak_rss_bytes{labels} 2.5e+08",
    ):
        assert line in found
    assert 'tpiedge_node_memory_limit_bytes{node="master",rank="0"} 0.0' in found
    assert not [line for line in found if 'rank="0"' in line and "_limit_" not in line]


@pytest.mark.fault("H12", "escaped in metrics")
def test_labels_are_escaped() -> None:
    found = lines(node('a"b\\c\nd', 0, "ready", STATS))
    assert 'tpiedge_node_stalls_total{node="a\\"b\\\\c\\nd",rank="0"} 2.0' in found


def test_vllm_metrics_use_the_vllm_names() -> None:
    found = lines(node("master", 0, "ready", STATS))
    for line in (
        'vllm:num_requests_running{engine="0",model_name="babbler"} 16.0',
        'vllm:num_requests_waiting{engine="0",model_name="babbler"} 2.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="babbler"} 1.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="babbler"} 3.0',
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="babbler"} 2.0',
        'vllm:request_success_total{engine="0",finished_reason="error",model_name="babbler"} 1.0',
        'vllm:prompt_tokens_total{engine="0",model_name="babbler"} 30.0',
        'vllm:generation_tokens_total{engine="0",model_name="babbler"} 50.0',
        'vllm:prefix_cache_queries_total{engine="0",model_name="babbler"} 30.0',
        'vllm:prefix_cache_hits_total{engine="0",model_name="babbler"} 12.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="babbler"} 0.3125',
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="babbler"} 20.0',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="babbler"} 13.0',
        "# TYPE vllm:time_to_first_token_seconds histogram",
        "# TYPE vllm:inter_token_latency_seconds histogram",
        "# TYPE vllm:time_per_output_token_seconds histogram",
        "# TYPE vllm:e2e_request_latency_seconds histogram",
    ):
        assert line in found


def test_kv_and_draft_metrics_are_absent_without_rank_0_stats() -> None:
    found = lines(node("master", 0, "ready", None))
    assert not [line for line in found if line.startswith(("vllm:kv_cache_usage", "vllm:spec_decode"))]


def test_counts_of_a_histogram_are_cumulative() -> None:
    times = RequestHistograms()
    line = Timeline(accepted=0.0)
    times.started(line, 0.5)
    for at in (1.0, 1.1, 1.1, 5000.0):
        times.token(line, at)
    times.finished(line, 5000.0, 7, 4)
    status = ClusterStatus(True, "", (), 0, 0, histograms=times)
    found = {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families("\n".join(page(status)) + "\n")
        for sample in family.samples
    }
    gaps = "vllm:inter_token_latency_seconds"
    assert [found[f"{gaps}_bucket", le] for le in ("0.001", "0.05", "0.2", "3600.0", "+Inf")] == [
        1,
        1,
        2,
        2,
        3,
    ]
    assert (found[f"{gaps}_count", ""], found[f"{gaps}_sum", ""]) == (3, 4999.0)
    assert found["vllm:time_to_first_token_seconds_bucket", "1.0"] == 1
    assert found["vllm:request_queue_time_seconds_sum", ""] == 0.5
    assert found["vllm:request_time_per_output_token_seconds_sum", ""] == 4999.0 / 3
    assert found["vllm:request_prompt_tokens_sum", ""] == 7


def test_metrics_list_every_histogram_before_any_request() -> None:
    """A board that asks for a name that is not there shows an error, or nothing."""
    families = {one.name: one for one in text_string_to_metric_families("\n".join(lines()) + "\n")}
    assert (
        len([one for one in families.values() if one.type == "histogram"])
        == len(fields(RequestHistograms)) + 2
    )
    pauses = families["tpiedge_answer_pause_seconds"].samples
    assert {sample.labels["cause"] for sample in pauses} == set(PAUSE_CAUSES)
    assert {sample.labels["cause"] for sample in families["tpiedge_losses"].samples} == set(LOSS_CAUSES)


def test_plans_and_losses_are_counted_by_cause() -> None:
    history = PlanHistory(begun=[1, 2, 3], failed=4, losses=[*range(len(LOSS_CAUSES))])
    found = page(ClusterStatus(True, "", (), 0, 0, history=history))
    for count, cause in enumerate(PLAN_CAUSES, 1):
        assert f'tpiedge_plans_total{{cause="{cause}"}} {count}.0' in found
    for count, loss in enumerate(LOSS_CAUSES):
        assert f'tpiedge_losses_total{{cause="{loss}"}} {count}.0' in found
    assert "tpiedge_failed_plans_total 4.0" in found
