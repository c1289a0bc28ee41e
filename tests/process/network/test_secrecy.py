"""Three machines serve, and whoever listens to the network between them learns nothing."""

import re
import socket
import struct
import sys
from pathlib import Path

import msgpack
import pytest

from tests.process.command import run_command, wait_for
from tests.process.network.capture import Capture, Recording
from tests.process.network.cluster import NetworkCluster
from tests.process.network.conftest import PROMPT, TOKENS
from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.serving import Worker
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.nodes.addresses import FILES_OFFSET
from tpiedge.nodes.tokens import parse_token
from tpiedge.pack.reader import Pack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")

_JOIN_S = 20.0
_MARKER = b"if this is not found, nothing would be found"
_PIECE = 64


class _Observed:
    """What an eavesdropper has got, and what it is that he wants."""

    def __init__(self, recording: Recording, cluster: NetworkCluster, token: str, answer: str) -> None:
        self.recording = recording
        self.cluster = cluster
        self.token = token
        self.answer = answer


@pytest.fixture(scope="module")
def observed(clusters, namespaces: Namespaces) -> _Observed:
    """One worker joins with a token and one with a code, weights are shipped, and a question is answered."""
    with Capture(namespaces) as capture:
        cluster = clusters("--min-workers", 2)
        cluster.start_master()
        token = cluster.token()
        with namespaces.inside("worker1"):
            cluster.start_worker("worker1", "--token", token, token=False)
        _approve(cluster, cluster.join("worker2", token=False))
        cluster.wait_ready(3)
        answer = cluster.ask(PROMPT, TOKENS)
        _say_in_the_open(namespaces)
    return _Observed(capture.recording(), cluster, token, answer)


def _approve(cluster: NetworkCluster, worker: Worker) -> None:
    """As a user does who reads the code on one screen and types it on another."""
    wait_for(lambda: "the code of this worker is" in worker.log, _JOIN_S)
    code = re.search(r"the code of this worker is ([^;]+);", worker.log)[1]
    ended = run_command("nodes", "approve", code, TPIEDGE_STATE=str(cluster.state))
    assert ended.status == 0, ended.err + cluster.logs()


def _say_in_the_open(namespaces: Namespaces) -> None:
    """The marker in two packets from a worker's machine to the master's."""
    with socket.create_server((namespaces.addresses[MASTER], 0)) as server, socket.socket() as client:
        with namespaces.inside("worker1"), socket.socket() as client:
            client.connect(server.getsockname())
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted, _ = server.accept()
            with accepted:
                client.sendall(_MARKER[:20])
                assert accepted.recv(100) == _MARKER[:20]
                client.sendall(_MARKER[20:])
                assert accepted.recv(100) == _MARKER[20:]


def test_three_machines_answer_exactly(observed: _Observed, expected: str) -> None:
    assert observed.answer == expected


def test_the_eavesdropper_hears_what_is_said_in_the_open(observed: _Observed) -> None:
    """Without this, that nothing else is found would mean nothing. The marker crosses the border of two packets."""
    assert len(observed.recording.find(_MARKER)) == 1


def test_the_eavesdropper_was_there_when_weights_were_shipped(observed: _Observed) -> None:
    nodes = observed.cluster.status()["nodes"]
    shipped = sum(node["weight_bytes"] for node in nodes if node["name"] != "master")
    assert shipped > 1 << 20
    assert observed.recording.sent_from(observed.cluster.port + FILES_OFFSET) >= shipped


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_no_text_is_on_the_wire(observed: _Observed, encoding: str) -> None:
    words = [PROMPT, observed.answer, PROMPT[:12], observed.answer[10:26]]
    assert [observed.recording.find(text.encode(encoding)) for text in words] == [[]] * len(words)


def test_no_token_ids_are_on_the_wire(observed: _Observed) -> None:
    folder = Path(sys.modules["tpiedge"].__file__).parent / "model" / "demo"
    tokenizer = Tokenizer.open(folder)
    for text in (PROMPT, observed.answer):
        ids = tokenizer.encode(text)
        assert len(ids) > 7
        packed = [struct.pack(f"{order}{len(ids)}{kind}", *ids) for order in "<>" for kind in "HIQ"]
        packed.append(b"".join(map(msgpack.packb, ids)))
        assert [observed.recording.find(form) for form in packed] == [[]] * len(packed)


def test_the_secret_of_the_token_is_not_on_the_wire(observed: _Observed) -> None:
    secret = parse_token(observed.token).secret
    raw = _unbase32(secret)
    assert len(raw) == 16
    for form in (secret.encode(), observed.token.encode(), raw, raw.hex().encode()):
        assert observed.recording.find(form) == []


def test_no_weights_are_on_the_wire(observed: _Observed) -> None:
    """Neither from the blobs as they are on disk, at several places of every layer."""
    shards = observed.cluster.workers["worker1"].cache / "shards"
    (manifest,) = shards.rglob("manifest.json")
    pack = Pack.open(manifest.parent)
    for layer in range(pack.num_layers):
        blob = _master_blob(pack, layer)
        for offset in range(0, len(blob) - _PIECE, len(blob) // 37):
            piece = blob[offset : offset + _PIECE]
            if len(set(piece)) > 16:  # not the zeros between matrices
                assert observed.recording.find(piece) == []


def _master_blob(pack: Pack, layer: int) -> bytes:
    return pack.blob_path(layer).read_bytes()


def _unbase32(text: str) -> bytes:
    import base64

    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))
