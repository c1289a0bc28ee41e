"""A made-up model (tests/cluster/made_up.py) in real processes: workers have no code of it, but its pack."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.made_up import CONFIG, IDS, PROMPT, WORDS, plain_answer, write_made_up
from tests.process.command import Ended, wait_for
from tests.process.faulty import Fault
from tests.process.serving.conftest import SLOW
from tests.process.serving.serving import START_S, Serving
from tests.process.serving.test_drain import computed
from tpiedge.pack.manifest import manifest_bytes, pack_id
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import Precision
from tpiedge.pack.store import ShardStore

LONG = 150


@pytest.fixture(scope="module")
def said() -> str:
    """The plain loop's answer."""
    return "".join(f" {WORDS[token]}" for token in plain_answer(IDS, LONG))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_made_up(tmp_path_factory.mktemp("made-up") / "model", Precision.F32)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Fault:
    return Fault("slow", tmp_path_factory.mktemp("fault") / "slow")


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving], pack: Path, slow: Fault) -> Serving:
    """Machines are so slow that three of them are worth it."""
    cluster = clusters("--min-workers", 1, "--speculate", "off", model=str(pack))
    cluster.start_master()
    cluster.start_worker("ann", bytes_per_s=SLOW, program=slow.program)
    cluster.start_worker("bob", bytes_per_s=SLOW)
    return cluster


@pytest.fixture
def lasting(slow: Fault) -> Iterator[Fault]:
    """Answers last until this ends: a node takes a quarter of a second for a token."""
    slow.begin()
    yield slow
    slow.end()


def test_processes_compute_a_made_up_model(pack: Path, generate: Callable[..., dict]) -> None:
    prompt = "--prompt-ids", ",".join(map(str, IDS)), "--max-tokens", 12, "--ignore-eos"
    command = ("--model", pack, *prompt, "--nodes", 3, "--shares", "3,1,0:2")
    kept = generate(*command)
    streamed = generate(*command, "--pin", "none", "--window", 1)
    for record in (kept, streamed):
        assert tuple(record["token_ids"]) == plain_answer(IDS, LONG)[:12]
    for node, then, share in zip(kept["nodes"], streamed["nodes"], kept["plan"]["shares"], strict=True):
        assert node["weight_bytes"] == share["weight_bytes"]
        assert node["peak_rss_bytes"] <= share["predicted_bytes"]
        assert then["weight_bytes"] < node["weight_bytes"]
        # Every sweep but the first reads again what is not kept.
        assert then["disk_read_bytes"] > 5 * (node["weight_bytes"] - then["weight_bytes"])


def test_workers_fetch_their_shares_of_a_made_up_model(cluster: Serving, pack: Path, said: str) -> None:
    status = cluster.wait_ready(3)
    assert cluster.whole(PROMPT, LONG) == said
    identity = pack_id(manifest_bytes(pack))
    for name, worker in cluster.workers.items():
        node = next(one for one in status["nodes"] if one["host"] == name)
        axes = {"attention": Share(*node["attention"]), "ffn": Share(*node["ffn"])}
        share = NodeShare(Share(CONFIG.num_layers), axes)
        with ShardStore(worker.cache / "shards").open(identity) as copy:
            assert copy.missing(share) == copy.verify(share) == {}
            assert not any(copy.pack.blob_path(key).stat().st_blocks for key in ("embedding", "head"))
        planned = sum(Pack.open(pack).share_bytes(layer, share) for layer in range(CONFIG.num_layers))
        assert node["weight_bytes"] == planned


def test_answer_of_a_made_up_model_survives_a_planned_change(
    cluster: Serving, lasting: Fault, said: str, here: Callable[..., Ended]
) -> None:
    cluster.wait_ready(3)
    lost = cluster.losses()
    with cluster.streaming(PROMPT, LONG) as stream:
        ended = here("nodes", "drain", "bob", TPIEDGE_STATE=str(cluster.state))
        lasting.end()
        assert ended.status == 0, ended.err
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, said)
    cluster.wait_ready(2)
    anew = cluster.losses() > lost  # a busy machine has other reasons, too
    assert 0 < computed(cluster) < LONG or anew, "prompt and answer were computed anew"
    assert here("nodes", "drain", "bob", "--undo", TPIEDGE_STATE=str(cluster.state)).status == 0


def test_answer_of_a_made_up_model_survives_a_loss(cluster: Serving, lasting: Fault, said: str) -> None:
    cluster.wait_ready(3)
    lost, resumed = cluster.losses(), cluster.status()["totals"]["resumed"]
    with cluster.streaming(PROMPT, LONG) as stream:
        stream.wait_for_text(20)
        cluster.workers["bob"].node.kill()
        wait_for(lambda: cluster.losses() > lost, START_S)
        lasting.end()
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, said)
    assert cluster.status()["totals"]["resumed"] > resumed
    cluster.wait_ready(3)
