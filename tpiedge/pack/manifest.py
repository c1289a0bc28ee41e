"""manifest.json: what a pack holds, and the JSON form of a ModelSpec.

A manifest is untrusted input: whatever it says is checked field by field, and every complaint is a UserError.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tpiedge.errors import UserError
from tpiedge.pack.files import open_regular
from tpiedge.pack.hashes import is_blob_id
from tpiedge.pack.specs import JSON, BlobSpec, MatrixSpec, ModelSpec, VectorSpec
from tpiedge.pack.storage import Storage
from tpiedge.units import counted

# Of packs without quantised matrices, and of those with: kernels/panels.py interleaves scales and codes since 2.
_VERSION, _QUANTISED_VERSION = 1, 2
MANIFEST_NAME = "manifest.json"
BLOB_FOLDER = "blobs"
TEXT_FOLDER = "text"
"""Where a pack has config, tokenizer and template of its model."""
_FORMAT = "tpiedge-pack"
_MAX_BYTES = 16 << 20  # 1024 layers take 3 MB
# Parsing takes memory by the number of JSON values rather than by bytes.
_MAX_COMMAS = 500_000
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


def load_manifest(pack: Path) -> Manifest:
    """Read the manifest of the pack in folder `pack`. Raises UserError."""
    path = pack / MANIFEST_NAME
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{pack} is not a pack (no {MANIFEST_NAME}): make one with tpiedge pack") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES or data.count(b",") > _MAX_COMMAS:
        raise UserError(f"{path} is larger than any pack's: it is not one; pack again")
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
    layers = _get(value, "layers")
    return ModelSpec(
        embedding=_blob_from_json(_get(value, "embedding")),
        layers=tuple(_blob_from_json(layer) for layer in _sequence(layers, "layers")),
        head=_blob_from_json(_get(value, "head")),
        config=_mapping(_get(value, "config"), "config"),
    )


def _parse(document: JSON) -> Manifest:
    body = _mapping(_get(document, "manifest"), "manifest")
    if body.get("format") != _FORMAT or body.get("version") not in (_VERSION, _QUANTISED_VERSION):
        raise UserError(
            f"not a pack of version {_VERSION} or {_QUANTISED_VERSION}: pack again with this tpiedge"
        )
    if _get(document, "checksum") != _checksum(body):
        raise UserError("the checksum differs, so the file is damaged: delete the pack and pack again")
    blobs = _get(body, "blobs")
    spec = model_spec_from_json(_get(body, "spec"))
    layers = tuple(_id(layer) for layer in _sequence(_get(blobs, "layers"), "blobs.layers"))
    if len(layers) != len(spec.layers):
        raise UserError(
            f"{counted(len(layers), 'blob')} for {counted(len(spec.layers), 'layer')}: pack again"
        )
    distinct = _get(body, "distinct_layers")
    if not isinstance(distinct, int) or not 1 <= distinct <= len(layers):
        raise UserError(f"distinct_layers is not a number from 1 to {len(layers)}: pack again")
    return Manifest(
        spec=spec,
        storage=_storage(body, spec),
        source=_text(_get(body, "source"), "source"),
        distinct_layers=distinct,
        embedding=_id(_get(blobs, "embedding")),
        layers=layers,
        head=_id(_get(blobs, "head")),
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
    matrices = _sequence(_get(value, "matrices"), "matrices")
    vectors = _sequence(_get(value, "vectors"), "vectors")
    return BlobSpec(
        tuple(_record(MatrixSpec, matrix, 6) for matrix in matrices),
        tuple(_record(VectorSpec, vector, 3) for vector in vectors),
    )


def _record(make: Callable[..., _T], value: JSON, fields: int) -> _T:
    """`make` checks the types and bounds of what it is given."""
    values = _sequence(value, make.__name__)
    if len(values) != fields:
        raise UserError(f"pack layout: {make.__name__} of {len(values)} fields, not {fields}; pack again")
    return make(*values)


def _get(value: JSON, key: str) -> JSON:
    mapping = _mapping(value, f"the parent of {key}")
    if key not in mapping:
        raise UserError(f"the field {key} is missing: pack again")
    return mapping[key]


def _mapping(value: JSON, what: str) -> Mapping[str, JSON]:
    if not isinstance(value, Mapping):
        raise UserError(f"{what} is not an object: pack again")
    return value


def _sequence(value: JSON, what: str) -> Sequence[JSON]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(f"{what} is not a list: pack again")
    return value


def _text(value: JSON, what: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{what} is not a text: pack again")
    return value


def _id(value: JSON) -> str:
    if not is_blob_id(value):
        raise UserError(f"not the id of a blob: {str(value)[:80]!r}; pack again")
    return str(value)
