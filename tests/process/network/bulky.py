"""A model that takes seconds to ship to a worker on a slow link, and how far that is."""

import json
from pathlib import Path

from tests.process.command import run_command
from tests.process.models import build_text_model
from tests.process.serving.machines import Worker
from tpiedge.pack.files import FileLock
from tpiedge.pack.reader import Pack
from tpiedge.pack.shard_copy import ShardCopy

PROMPT, TOKENS = "ba zu ke", 12
CONTEXT = 256


def build_bulky_model(folder: Path) -> Path:
    return build_text_model(folder, hidden_size=256, intermediate_size=3072, num_hidden_layers=6)


def reference_text(model: Path) -> str:
    ended = run_command(
        "run", "--model", model, "--raw", "--prompt", PROMPT, "--max-tokens", TOKENS, "--temperature", 0,
        "--threads", 1,
        "--context", CONTEXT, "--json",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    return json.loads(ended.out)["text"]


def worker_of(status: dict, name: str = "worker1") -> dict:
    return next((node for node in status["nodes"] if node["host"] == name), {})


def fetched(status: dict) -> float:
    worker = worker_of(status)
    return worker["fetched_bytes"] / worker["fetch_total_bytes"] if worker.get("fetch_total_bytes") else 0.0


def held_bytes(worker: Worker) -> int:
    (folder,) = (worker.cache / "shards" / "packs").iterdir()
    pack = Pack.open(folder)
    copy = ShardCopy(pack, folder.name, FileLock(folder / "in-use"))
    layers = {layer: pack.layout(layer).ranges() for layer in range(pack.num_layers)}
    return sum(
        item.length for layer, ranges in layers.items() for item in copy.presence(layer).present(ranges)
    )
