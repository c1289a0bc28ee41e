"""A pack of 17 MB, a master that ships it, and workers."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.manifest import manifest_bytes, pack_id
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec
from tpiedge.pack.writer import write_pack
from tpiedge.planner.needs import LayerShape
from tpiedge.shipping.server import ShipServer
from tpiedge.transport.endpoint import FILES, Buffer, Envelope
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.codec import FLAT_BYTES, decode
from tpiedge.wire.data import Fetch, FileChunk

HIDDEN, FFN, HEAD_DIM, LAYERS = 256, 1024, 32, 4
HEADS, TILES = HIDDEN // HEAD_DIM, FFN // 128
WORKERS = 3
SHAPE = LayerShape(HEADS, HEADS, TILES, LAYERS)


def _layer(number: int) -> BlobSpec:
    at = f"layers.{number}"
    attention = [
        MatrixSpec(name, f"{at}.{name}", HIDDEN, HIDDEN, HEAD_DIM, name == "o")
        for name in ("q", "k", "v", "o")
    ]
    ffn = [
        MatrixSpec(name, f"{at}.{name}", FFN, HIDDEN, 128, name == "down") for name in ("gate", "up", "down")
    ]
    return BlobSpec((*attention, *ffn), (VectorSpec("attention_norm", f"{at}.norm", HIDDEN),))


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    table = MatrixSpec("embedding", "embed", 1000, HIDDEN, 128), MatrixSpec("head", "head", 1000, HIDDEN, 128)
    spec = ModelSpec(
        BlobSpec((table[0],)),
        tuple(_layer(number) for number in range(LAYERS)),
        BlobSpec((table[1],), (VectorSpec("final_norm", "norm", HIDDEN),)),
        {},
    )
    out = tmp_path_factory.mktemp("shipping") / "pack"
    source = RandomSource.for_spec(3, spec, "F32")
    return Pack.open(write_pack(spec, source, Precision.F32, out).path)


class CountingHub(ZmqHub):
    """`shipped`: bytes of blobs that each worker was sent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shipped: Counter[str] = Counter()
        self._requests: set[tuple[str, int, int]] = set()

    def recv(self, timeout_s: float) -> Envelope | None:
        envelope = super().recv(timeout_s)
        if envelope is not None and isinstance(envelope.message, Fetch) and envelope.message.part == "blob":
            self._requests.add((envelope.sender, envelope.message.epoch, envelope.message.number))
        return envelope

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        super().send_frame(frame, to, timeout_s)
        message = decode(bytes(frame[:FLAT_BYTES])) if isinstance(frame, memoryview) else None
        if isinstance(message, FileChunk) and (to, message.epoch, message.number) in self._requests:
            self.shipped[str(to)] += len(frame) - FLAT_BYTES


class Master:
    """Ships a pack to `worker-0` and so on; `server` may be closed and started again at the same address."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.keys = CurveKeys.generate()
        self.workers = [CurveKeys.generate() for _ in range(WORKERS)]
        self.address = "tcp://127.0.0.1:*"
        self.identity = ""
        self.server: ShipServer | None = None
        self.hub: CountingHub | None = None

    def start(self, kind: type[ShipServer] = ShipServer) -> ShipServer:
        allowed = {keys.public: f"worker-{number}" for number, keys in enumerate(self.workers)}
        self.hub = CountingHub(self.address, self.keys, "master", allowed, plane=FILES)
        self.address = self.hub.address
        self.server = kind(self.hub, [self.pack])
        self.identity = pack_id(manifest_bytes(self.pack.path))
        self.server.start()
        return self.server

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def spoke(self, number: int = 0, keys: CurveKeys | None = None) -> ZmqSpoke:
        own = keys or self.workers[number]
        return ZmqSpoke(
            self.address, self.keys.public, own, f"worker-{number}", hub_name="master", plane=FILES
        )

    def shipped(self) -> int:
        """Bytes of blobs since the start, to all workers."""
        assert self.hub is not None
        return self.hub.shipped.total()


@pytest.fixture
def master(pack: Pack) -> Iterator[Master]:
    made = Master(pack)
    made.start()
    yield made
    made.close()


@pytest.fixture
def start_worker(master: Master, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a worker process: start_worker(number, share, store, script="worker.py", **order)."""
    started: list[subprocess.Popen[str]] = []

    def start(
        number: int, share: NodeShare, store: Path, script: str = "worker.py", **order: object
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        own = master.workers[number]
        order = {
            "address": master.address,
            "master": master.keys.public,
            "keys": [own.public, own.secret],
            "name": f"worker-{number}",
            "pack": master.identity,
            "store": str(store),
            "share": msgspec.to_builtins(share.ranges),
            "sync_bytes": 1 << 20,
            **order,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def whole() -> NodeShare:
    return SHAPE.whole
