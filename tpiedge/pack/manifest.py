"""The file manifest.json, which says what a pack holds. Its sha256 is the pack's id. The file is untrusted, so every
field is checked. Every error is a UserError."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tpiedge.errors import UserError
from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import Storage
from tpiedge.pack.specs import JSON, ModelSpec, Precision
from tpiedge.sanitise import sanitised_line
from tpiedge.units import counted

MANIFEST_NAME = "manifest.json"
BLOB_FOLDER = "blobs"
TEXT_FOLDER = "text"
"""The folder of a model's config, tokenizer and template."""
MAX_MANIFEST_BYTES = 16 << 20  # 1024 layers take 3 MB
_FORMAT = "tpiedge-pack"
# Packs with quantised matrices have version 2 since kernels/panels.py interleaves scales and codes. Packs whose config
# lists layers have version 3, because version 1 and 2 are read by releases that know Llama's layers only. Packs with
# experts list layers.
_VERSIONS = 1, 2, 3

_BlobId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class BlobIds(msgspec.Struct, frozen=True):
    embedding: _BlobId
    layers: tuple[_BlobId, ...]
    head: _BlobId


class _Precisions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    embedding: Precision | UnsetType = UNSET
    head: Precision | UnsetType = UNSET


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of manifest.json. `kept`: tensor of a layer -> its precision, if it is not the layers'. `source`
    identifies the packed numbers. Layer i equals layer i % `distinct_layers`."""

    format: str
    version: int
    precision: Precision
    precisions: _Precisions | UnsetType = UNSET
    kept: Mapping[str, Precision] | UnsetType = UNSET
    vectors: Literal["f32"] | UnsetType = UNSET
    search: bool = True
    source: str
    distinct_layers: Annotated[int, Meta(ge=1)]
    spec: ModelSpec
    blobs: BlobIds

    @staticmethod
    def of(
        spec: ModelSpec, storage: Storage, source: str, distinct_layers: int, blobs: BlobIds
    ) -> "Manifest":
        return Manifest(
            format=_FORMAT,
            version=_version(spec, storage),
            precision=storage.layers,
            precisions=_Precisions(storage.embedding, storage.head) if storage.layers.quantised else UNSET,
            kept=storage.kept or UNSET,
            vectors="f32" if storage.vectors_f32 else UNSET,
            search=storage.search,
            source=source,
            distinct_layers=distinct_layers,
            spec=spec,
            blobs=blobs,
        )

    @property
    def storage(self) -> Storage:
        """The precisions of all blobs."""
        others = self.precisions or _Precisions()
        embedding, head = others.embedding or self.precision, others.head or self.precision
        return Storage(
            self.precision, embedding, head, self.search, self.vectors is not UNSET, self.kept or {}
        )

    def same_request(self, other: "Manifest") -> bool:
        """Whether model, numbers and storage are the same."""
        mine = msgspec.structs.replace(self, blobs=other.blobs)
        return _checksum(msgspec.to_builtins(mine)) == _checksum(msgspec.to_builtins(other))


def manifest_text(manifest: Manifest) -> bytes:
    """Returns the content of manifest.json. Its checksum does not stop forgery."""
    body = msgspec.to_builtins(manifest)
    return json.dumps({"checksum": _checksum(body), "manifest": body}, indent=1).encode()


def manifest_bytes(folder: Path) -> bytes:
    """Reads the pack's manifest without parsing it."""
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
    """Returns a pack's id, the manifest's sha256."""
    return hashlib.sha256(manifest).hexdigest()


def load_manifest(pack: Path) -> Manifest:
    """Reads and checks a pack's manifest."""
    data, path = manifest_bytes(pack), pack / MANIFEST_NAME
    try:
        return _parse(json.loads(data))
    except msgspec.ValidationError as error:
        is_type = any(field in str(error) for field in ("`$.precision", "`$.kept["))
        known = f" ({', '.join(one.value for one in Precision)})" if is_type else ""
        raise UserError(f"{path}: {sanitised_line(error, 200)}{known}: pack again") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): pack again") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _parse(document: Any) -> Manifest:
    body = document.get("manifest") if isinstance(document, dict) else None
    if not isinstance(body, dict) or body.get("format") != _FORMAT or body.get("version") not in _VERSIONS:
        raise UserError(
            f"not a pack of version 1 to {_VERSIONS[-1]}: pack again with this tpiedge, or install the one that made it"
        )
    if document.get("checksum") != _checksum(body):
        raise UserError("the checksum differs, so the file is damaged: delete the pack and pack again")
    found = msgspec.convert(body, Manifest)
    spec, storage, layers = found.spec, found.storage, found.blobs.layers
    if found.version != (right := _version(spec, storage)):
        raise UserError(f"a pack of version {found.version}, not {right}: pack again with this tpiedge")
    if spec.tied and storage.embedding is not storage.head:
        raise UserError("two precisions for an embedding that is the head, too: pack again")
    known = {matrix.source for layer in spec.layers for matrix, _ in layer.counted_matrices}
    known |= {matrix.source for matrix in spec.embedding.matrices[1:]}
    if unknown := storage.kept.keys() - known:
        raise UserError(f"no layer has the matrix {min(unknown)!r:.100}: pack again")
    if len(layers) != len(spec.layers):
        raise UserError(
            f"{counted(len(layers), 'blob')} for {counted(len(spec.layers), 'layer')}: pack again"
        )
    if found.distinct_layers > len(layers):
        raise UserError(f"distinct_layers is not a number from 1 to {len(layers)}: pack again")
    return found


def _version(spec: ModelSpec, storage: Storage) -> int:
    lists = "layers" in spec.config or any(layer.experts for layer in spec.layers)
    return 3 if lists else 2 if storage.layers.quantised else 1


def _checksum(body: Mapping[str, JSON]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
