"""manifest.json: what a pack holds, and the name of a pack between computers.

A manifest is untrusted input: every field is checked and every complaint is a UserError.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tpiedge.errors import UserError
from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import Storage
from tpiedge.pack.specs import JSON, ModelSpec, model_spec_from_json, model_spec_to_json
from tpiedge.sanitise import sanitised_line
from tpiedge.units import counted

MANIFEST_NAME = "manifest.json"
BLOB_FOLDER = "blobs"
TEXT_FOLDER = "text"
"""The folder of a model's config, tokenizer and template."""
MAX_MANIFEST_BYTES = 16 << 20  # 1024 layers take 3 MB
_FORMAT = "tpiedge-pack"
# Of packs without quantised matrices, and of those with: kernels/panels.py interleaves scales and codes since 2.
_VERSION, _QUANTISED_VERSION = 1, 2

_BlobId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Blobs(msgspec.Struct):
    embedding: _BlobId
    layers: tuple[_BlobId, ...]
    head: _BlobId


class _Body(msgspec.Struct):
    source: str
    distinct_layers: Annotated[int, Meta(ge=1)]
    blobs: _Blobs
    spec: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """`layers[i]`, `embedding` and `head` are blob ids; `source` tells which numbers were packed. Layer i was made
    from the numbers of layer `i % distinct_layers`."""

    spec: ModelSpec
    storage: Storage
    source: str
    distinct_layers: int
    embedding: str
    layers: tuple[str, ...]
    head: str

    def same_request(self, other: "Manifest") -> bool:
        """Whether both have the same model, numbers and storage, whatever their blobs."""
        return _checksum(_request(self)) == _checksum(_request(other))


def manifest_text(manifest: Manifest) -> bytes:
    """The file's content. The checksum guards against damage, not against forgery."""
    blobs: JSON = {"embedding": manifest.embedding, "layers": manifest.layers, "head": manifest.head}
    body = _request(manifest) | {"blobs": blobs}
    return json.dumps({"checksum": _checksum(body), "manifest": body}, indent=1).encode()


def manifest_bytes(folder: Path) -> bytes:
    """The manifest of the pack in `folder`, unparsed. Raises UserError."""
    path = folder / MANIFEST_NAME
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} is not a pack (no {MANIFEST_NAME}): make one with tpiedge pack") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    # Parsing takes memory by the number of JSON values rather than by bytes.
    if len(data) > MAX_MANIFEST_BYTES or data.count(b",") > 500_000:
        raise UserError(f"{path} is larger than any pack's: it is not one; pack again")
    return data


def pack_id(manifest: bytes) -> str:
    """The name of a pack between computers: the sha256 of its manifest, which names every blob by its content."""
    return hashlib.sha256(manifest).hexdigest()


def load_manifest(pack: Path) -> Manifest:
    """Reads the manifest of the pack in folder `pack`. Raises UserError."""
    data, path = manifest_bytes(pack), pack / MANIFEST_NAME
    try:
        return _parse(json.loads(data))
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {sanitised_line(error, 200)}: pack again") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): pack again") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _parse(document: Any) -> Manifest:
    body = document.get("manifest") if isinstance(document, dict) else None
    if (
        not isinstance(body, dict)
        or body.get("format") != _FORMAT
        or body.get("version") not in (_VERSION, _QUANTISED_VERSION)
    ):
        raise UserError(
            f"not a pack of version {_VERSION} or {_QUANTISED_VERSION}: pack again with this tpiedge"
        )
    if document.get("checksum") != _checksum(body):
        raise UserError("the checksum differs, so the file is damaged: delete the pack and pack again")
    found, storage = msgspec.convert(body, _Body), Storage.from_json(body)
    spec, layers = model_spec_from_json(found.spec), found.blobs.layers
    if body["version"] != _version(storage):
        raise UserError(
            f"a pack of version {body['version']}, where {storage.layers.value} has {_version(storage)}: "
            "pack again with this tpiedge"
        )
    if spec.tied and storage.embedding is not storage.head:
        raise UserError("two precisions for an embedding that is the head, too: pack again")
    if len(layers) != len(spec.layers):
        raise UserError(
            f"{counted(len(layers), 'blob')} for {counted(len(spec.layers), 'layer')}: pack again"
        )
    if found.distinct_layers > len(layers):
        raise UserError(f"distinct_layers is not a number from 1 to {len(layers)}: pack again")
    ids = found.blobs.embedding, layers, found.blobs.head
    return Manifest(spec, storage, found.source, found.distinct_layers, *ids)


def _request(manifest: Manifest) -> dict[str, JSON]:
    return {
        "format": _FORMAT,
        "version": _version(manifest.storage),
        **manifest.storage.to_json(),
        "source": manifest.source,
        "distinct_layers": manifest.distinct_layers,
        "spec": model_spec_to_json(manifest.spec),
    }


def _version(storage: Storage) -> int:
    return _QUANTISED_VERSION if storage.layers.quantised else _VERSION


def _checksum(body: Mapping[str, JSON]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
