"""Three machines serve, and a listener in the network between them learns nothing."""

import base64
import os
import struct
import sys
from pathlib import Path

import msgspec
import pytest

from tests.process.conftest import PROMPT
from tests.process.network.cluster import NetworkCluster
from tests.process.network.observed.recorded import MARKER, Observed
from tpiedge.host.addresses import FILES_OFFSET
from tpiedge.joining.tokens import parse_token
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.manifest import manifest_bytes, pack_id
from tpiedge.pack.reader import Pack

_PIECE = 64


def test_three_machines_answer_exactly(observed: Observed, expected: str) -> None:
    assert observed.answer == expected


def test_packet_recording_finds_unencrypted_text(observed: Observed) -> None:
    """Proves that the search would find plain text. The marker crosses the border of two packets."""
    assert len(observed.recording.find(MARKER)) == 1


def test_packet_recording_covers_the_shipped_weights(observed: Observed, cluster: NetworkCluster) -> None:
    shipped = sum(node["weight_bytes"] for node in cluster.status()["nodes"] if node["name"] != "master")
    assert shipped > 1 << 20
    assert observed.recording.sent_from(cluster.port + FILES_OFFSET) >= shipped


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
@pytest.mark.fault("W6", "who records all packets finds no text")
def test_no_text_is_on_the_wire(observed: Observed, encoding: str) -> None:
    words = [PROMPT, observed.answer, PROMPT[:12], observed.answer[10:26]]
    assert [observed.recording.find(text.encode(encoding)) for text in words] == [[]] * len(words)


def test_no_token_ids_are_on_the_wire(observed: Observed) -> None:
    folder = Path(sys.modules["tpiedge"].__file__).parent / "model" / "demo"
    tokenizer = Tokenizer.open(folder, here=True)
    for text in (PROMPT, observed.answer):
        ids = tokenizer.encode(text)
        assert len(ids) > 7
        packed = [struct.pack(f"{order}{len(ids)}{kind}", *ids) for order in "<>" for kind in "HIQ"]
        packed.append(b"".join(map(msgspec.msgpack.encode, ids)))
        assert [observed.recording.find(form) for form in packed] == [[]] * len(packed)


def test_join_token_secret_is_not_on_the_wire(observed: Observed) -> None:
    secret = parse_token(observed.token).secret
    raw = _unbase32(secret)
    assert len(raw) == 16
    for form in (secret.encode(), observed.token.encode(), raw, raw.hex().encode()):
        assert observed.recording.find(form) == []


@pytest.mark.fault("W6", "who records all packets finds no weights")
def test_no_weights_are_on_the_wire(observed: Observed) -> None:
    pack = _masters_pack(observed.cluster)
    for layer in range(pack.num_layers):
        blob = pack.blob_path(layer).read_bytes()
        for offset in range(0, len(blob) - _PIECE, len(blob) // 37):
            piece = blob[offset : offset + _PIECE]
            if len(set(piece)) > 16:  # not the zeros between matrices
                assert observed.recording.find(piece) == []


def _masters_pack(cluster: NetworkCluster) -> Pack:
    (shipped,) = (cluster.workers["worker1"].cache / "shards" / "packs").iterdir()
    packs = [path.parent for path in Path(os.environ["TPIEDGE_CACHE"]).glob("packs/demo-*/manifest.json")]
    return next(Pack.open(pack) for pack in packs if pack_id(manifest_bytes(pack)) == shipped.name)


def _unbase32(text: str) -> bytes:
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))
