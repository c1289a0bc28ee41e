"""Machines that differ from the master: whose numbers would differ stays out, other models' weights stay unused."""

from pathlib import Path

import pytest

from tests.process.command import run_command, wait_for
from tests.process.serving.machines import measured
from tests.process.serving.serving import START_S, Serving, rank_of
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.enrolment import introduction
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.spec import model_spec
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.manifest import MANIFEST_NAME, manifest_bytes, pack_id
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.pack.store import ShardStore
from tpiedge.pack.writer import write_pack
from tpiedge.transport.keys import CurveKeys

pytestmark = pytest.mark.usefixtures("serving_on")

USER = 2


@pytest.fixture
def another_torch(tmp_path: Path) -> str:
    """A PYTHONPATH with which pip seems to have installed torch 99.0; what is imported stays the same."""
    info = tmp_path / "site" / "torch-99.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0+cpu\n")
    return str(info.parent)


@pytest.mark.fault("W9", "refused before it joins, with both versions and what to type")
def test_worker_with_another_torch_version_is_refused(cluster: Serving, another_torch: str, tmp_path: Path):
    """Refused before it is let in; its token stays good."""
    token, own = cluster.token(), introduction("").torch
    folders = ("--state", tmp_path / "state", "--cache", tmp_path / "cache")
    measured(tmp_path / "state" / "worker")
    ended = run_command("worker", "--token", token, *folders, "--threads", 1, PYTHONPATH=another_torch)
    assert ended.status == USER
    assert f"the worker has torch 99.0, the master torch {own}" in ended.err
    assert f"type 'pip install torch=={own}' on the worker's computer" in ended.err
    assert ended.err.count("\n") == 1
    parsed, keys = parse_token(token), CurveKeys.generate()
    with open_link(cluster.address, parsed.master_key, keys, peer_name(keys.public)) as link:
        enrol(link, "updated", parsed.secret)


@pytest.mark.fault("W9", "other weights are fetched, never mixed")
def test_same_named_weights_of_another_model_are_never_used(cluster: Serving, exact, tmp_path: Path):
    """Neither from a folder that the user names, nor from what is kept in the cache, be it under the right name."""
    ann = cluster.workers["ann"]
    assert ann.process.end() == 0
    other = pack_of_noise(tmp_path / "demo")
    store = ShardStore(ann.cache / "shards")
    (served,) = store.pack_ids
    (store.folder / "packs" / served / MANIFEST_NAME).write_bytes(manifest_bytes(other.path))
    keep(store, other)
    ann.options = ("--model-dir", other.path)
    cluster.start_worker("ann", token=False)
    cluster.wait_until(lambda status: status["ready"] and rank_of(status, "ann") == 1)
    exact(cluster)
    wait_for(lambda: f"{other.path} is not the model that the master serves" in ann.log, START_S)
    assert store.has(served)


def pack_of_noise(folder: Path) -> Pack:
    """The demo model's shape with numbers of its own."""
    spec = model_spec(Checkpoint.open(resolve_model(DEMO)).config)
    source = RandomSource.for_spec(11, spec, STORED[Precision.BF16])
    return Pack.open(write_pack(spec, source, Precision.BF16, folder).path)


def keep(store: ShardStore, pack: Pack) -> None:
    manifest = manifest_bytes(pack.path)
    store.adopt_manifest(manifest, pack_id(manifest))
    with store.open(pack_id(manifest)) as copy:
        assert copy.import_from(pack) == pack.num_layers
