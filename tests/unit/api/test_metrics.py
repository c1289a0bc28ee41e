"""What Prometheus reads."""

import pytest

from tpiedge.api.metrics import metrics_text
from tpiedge.master.status import ClusterStatus, NodeStatus, Totals
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
)


def node(name: str, rank: int | None, state: str, counters: Stats | None) -> NodeStatus:
    return NodeStatus(name, rank, state, (0, 1), (0, 1), 2, 0, 0.0, 0, 0.1, counters=counters)


def lines(*nodes: NodeStatus) -> list[str]:
    totals = Totals(finished=4, failed=1, prompt_tokens=30, cached_tokens=12, tokens=50)
    status = ClusterStatus(True, "", nodes, queued=2, running=16, epoch=3, totals=totals)
    text = metrics_text(status)
    assert text.endswith("\n")
    return text.splitlines()


def test_the_cluster_and_its_requests() -> None:
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
        'tpiedge_requests_total{outcome="cancelled"} 0.0',
        "tpiedge_prompt_tokens_total 30.0",
        "tpiedge_cached_prompt_tokens_total 12.0",
        "tpiedge_generated_tokens_total 50.0",
    ):
        assert line in found


def test_nodes_that_have_said_what_they_did() -> None:
    found = lines(node("master", 0, "ready", None), node("w-1", 1, "ready", STATS))
    labels = '{rank="1",node="w-1"}'
    for line in (
        f"tpiedge_node_disk_read_bytes_total{labels} 1.8446744073709552e+19",
        f"tpiedge_node_disk_reads_total{labels} 40.0",
        f"tpiedge_node_prefetch_hits_total{labels} 38.0",
        f"tpiedge_node_stalls_total{labels} 2.0",
        f"tpiedge_node_stall_seconds_total{labels} 0.125",
        f"tpiedge_node_attention_seconds_total{labels} 1.25",
        f"tpiedge_node_ffn_seconds_total{labels} 1.75",
        f"tpiedge_node_reduce_seconds_total{labels} 0.5",
        f"tpiedge_node_dropped_messages_total{labels} 6.0",
        f"tpiedge_node_refused_messages_total{labels} 9.0",
        f"tpiedge_node_peak_rss_bytes{labels} 250000000.0",
        f"tpiedge_node_weight_bytes{labels} 92000000.0",
        f"tpiedge_node_kv_pages{labels} 16.0",
        f"tpiedge_node_kv_pages_used{labels} 5.0",
        f"tpiedge_node_drafted_tokens_total{labels} 20.0",
        f"tpiedge_node_accepted_tokens_total{labels} 13.0",
    ):
        assert line in found
    assert not [line for line in found if 'rank="0"' in line]


def test_every_metric_is_described_once_before_its_values() -> None:
    described: set[str] = set()
    for line in lines(node("master", 0, "ready", STATS)):
        if line.startswith("# HELP"):
            name = line.split()[2]
            assert name not in described
            described.add(name)
        elif not line.startswith("# TYPE"):
            assert line.partition("{")[0].split()[0] in described


@pytest.mark.fault("H12", "escaped in metrics")
def test_labels_are_escaped() -> None:
    found = lines(node('a"b\\c\nd', 0, "ready", STATS))
    assert 'tpiedge_node_stalls_total{rank="0",node="a\\"b\\\\c\\nd"} 2.0' in found


def test_how_nodes_add_up() -> None:
    status = ClusterStatus(True, "", (), 0, 0, 3, collective="mesh", bulk_collective="two-shot")
    found = metrics_text(status).splitlines()
    assert 'tpiedge_collective{of="token",collective="mesh"} 1.0' in found
    assert 'tpiedge_collective{of="chunk",collective="two-shot"} 1.0' in found
    assert not [line for line in lines() if line.startswith("tpiedge_collective{")]
