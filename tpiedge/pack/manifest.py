"""manifest.json: what a pack holds, the JSON form of a ModelSpec, and the name of a pack between computers.

A manifest is untrusted input: whatever it says is checked field by field, and every complaint is a UserError.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tpiedge.errors import UserError
from tpiedge.pack.files import open_regular
from tpiedge.pack.hashes import is_blob_id
from tpiedge.pack.specs import JSON, BlobSpec, MatrixSpec, ModelSpec, VectorSpec
from tpiedge.pack.storage import Storage
from tpiedge.units import counted

MANIFEST_NAME = "manifest.json"
BLOB_FOLDER = "blobs"
TEXT_FOLDER = "text"
"""Where a pack has config, tokenizer and template of its model."""
MAX_MANIFEST_BYTES = 16 << 20  # 1024 layers take 3 MB
_FORMAT = "tpiedge-pack"
# Of packs without quantised matrices, and of those with: kernels/panels.py interleaves scales and codes since 2.
_VERSION, _QUANTISED_VERSION = 1, 2
_T = TypeVar("_T")


@dataclass(frozen=True)
class Manifest:
    """`layers[i]`, `embedding` and `head` are blob ids; `source` tells which numbers were packed.

    Layer i was made from the numbers of layer `i % distinct_layers`.
    """

    spec: ModelSpec
    storage: Storage
    source: str
    distinct_layers: int
    embedding: str
    layers: tuple[str, ...]
    head: str

    def same_request(self, other: "Manifest") -> bool:
        """Whether both come from the same model, numbers and storage, whatever their blobs."""
        return _checksum(_request(self)) == _checksum(_request(other))


def manifest_text(manifest: Manifest) -> bytes:
    """The file's content. The checksum guards against damage, not against forgery."""
    blobs: JSON = {"embedding": manifest.embedding, "layers": manifest.layers, "head": manifest.head}
    body = _request(manifest) | {"blobs": blobs}
    return json.dumps({"checksum": _checksum(body), "manifest": body}, indent=1).encode()


def manifest_bytes(folder: Path) -> bytes:
    """The manifest of the pack in `folder`, unread. Raises UserError."""
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
    """Read the manifest of the pack in folder `pack`. Raises UserError."""
    data, path = manifest_bytes(pack), pack / MANIFEST_NAME
    try:
        return _parse(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): pack again") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def model_spec_to_json(spec: ModelSpec) -> dict[str, JSON]:
    """The JSON form that `model_spec_from_json` reads."""
    return {
        "embedding": _blob_to_json(spec.embedding),
        "layers": [_blob_to_json(layer) for layer in spec.layers],
        "head": _blob_to_json(spec.head),
        "config": spec.config,
    }


def model_spec_from_json(value: JSON) -> ModelSpec:
    """Raises UserError for anything but the JSON form of a ModelSpec."""
    return ModelSpec(
        embedding=_blob_from_json(_get(value, "embedding", dict)),
        layers=tuple(_blob_from_json(layer) for layer in _get(value, "layers", list)),
        head=_blob_from_json(_get(value, "head", dict)),
        config=_get(value, "config", dict),
    )


def _parse(document: JSON) -> Manifest:
    body = _get(document, "manifest", dict)
    if body.get("format") != _FORMAT or body.get("version") not in (_VERSION, _QUANTISED_VERSION):
        raise UserError(
            f"not a pack of version {_VERSION} or {_QUANTISED_VERSION}: pack again with this tpiedge"
        )
    if _get(document, "checksum", str) != _checksum(body):
        raise UserError("the checksum differs, so the file is damaged: delete the pack and pack again")
    blobs = _get(body, "blobs", dict)
    spec = model_spec_from_json(_get(body, "spec", dict))
    layers = tuple(_id(layer) for layer in _get(blobs, "layers", list))
    if len(layers) != len(spec.layers):
        raise UserError(
            f"{counted(len(layers), 'blob')} for {counted(len(spec.layers), 'layer')}: pack again"
        )
    distinct = _get(body, "distinct_layers", int)
    if not 1 <= distinct <= len(layers):
        raise UserError(f"distinct_layers is not a number from 1 to {len(layers)}: pack again")
    return Manifest(
        spec=spec,
        storage=_storage(body, spec),
        source=_get(body, "source", str),
        distinct_layers=distinct,
        embedding=_id(_get(blobs, "embedding", str)),
        layers=layers,
        head=_id(_get(blobs, "head", str)),
    )


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


def _storage(body: Mapping[str, JSON], spec: ModelSpec) -> Storage:
    storage = Storage.from_json(body)
    if body["version"] != _version(storage):
        raise UserError(
            f"a pack of version {body['version']}, where {storage.layers.value} has {_version(storage)}: "
            "pack again with this tpiedge"
        )
    if spec.tied and storage.embedding is not storage.head:
        raise UserError("two precisions for an embedding that is the head, too: pack again")
    return storage


def _checksum(body: Mapping[str, JSON]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _blob_to_json(blob: BlobSpec) -> dict[str, JSON]:
    return {
        "matrices": [
            [m.name, m.source, m.rows, m.cols, m.rows_per_unit, m.transposed] for m in blob.matrices
        ],
        "vectors": [[v.name, v.source, v.length] for v in blob.vectors],
    }


def _blob_from_json(value: JSON) -> BlobSpec:
    return BlobSpec(
        tuple(_record(MatrixSpec, matrix, 6) for matrix in _get(value, "matrices", list)),
        tuple(_record(VectorSpec, vector, 3) for vector in _get(value, "vectors", list)),
    )


def _record(make: Callable[..., _T], value: JSON, fields: int) -> _T:
    """`make` checks the types and bounds of what it is given."""
    if not isinstance(value, list) or len(value) != fields:
        raise UserError(f"pack layout: {make.__name__} is not a list of {fields} fields; pack again")
    return make(*value)


def _get(value: JSON, key: str, kind: type[_T]) -> _T:
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        what = {dict: "an object", list: "a list", str: "a text", int: "a number"}[kind]
        raise UserError(f"the field {key} is missing, or not {what}: pack again")
    found: _T = value[key]
    return found


def _id(value: JSON) -> str:
    if not is_blob_id(value):
        raise UserError(f"not the id of a blob: {str(value)[:80]!r}; pack again")
    return str(value)
