import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.pack.layout import Storage
from tpiedge.pack.manifest import BlobIds, Manifest
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec

F32, BF16, Q8, Q4, *_ = Precision
SPEC = ModelSpec(BlobSpec((MatrixSpec("embedding", "e", 4, 6, 4),)), (BlobSpec(),), BlobSpec(), {})


def in_manifest(storage: Storage) -> dict[str, Any]:
    manifest = Manifest.of(SPEC, storage, "s", 1, BlobIds("a" * 64, ("b" * 64,), "c" * 64))
    fields: dict[str, Any] = json.loads(msgspec.json.encode(manifest))
    return fields


def from_manifest(fields: dict[str, Any]) -> Storage:
    return msgspec.convert(fields, Manifest).storage


@pytest.mark.parametrize(
    ("layers", "tied", "embedding", "head"),
    [
        (F32, False, F32, F32),
        (BF16, True, BF16, BF16),
        (Q4, False, BF16, Q8),
        (Q8, False, BF16, Q8),
        (Q4, True, Q8, Q8),
        (Q8, True, Q8, Q8),
    ],
)
def test_default_storage_follows_layer_precision(
    layers: Precision, tied: bool, embedding: Precision, head: Precision
) -> None:
    storage = Storage.of(layers, tied=tied)
    assert storage == Storage(layers, embedding, head)
    assert storage.label(tied=tied) == layers.value
    assert [storage.of_blob(key) for key in (0, 7, "embedding", "head")] == [layers, layers, embedding, head]


@pytest.mark.parametrize(
    ("tied", "embedding", "head", "search", "label"),
    [
        (False, None, None, False, "q4-plain"),
        (False, Q8, None, True, "q4-embedding-q8"),
        (False, None, F32, True, "q4-head-f32"),
        (False, Q4, Q4, False, "q4-embedding-q4-head-q4-plain"),
        (True, BF16, None, True, "q4-embedding-bf16-head-bf16"),
        (True, None, Q4, True, "q4-embedding-q4-head-q4"),
        (True, Q8, Q8, True, "q4"),
    ],
)
def test_requested_storage_is_labelled_and_kept_in_manifest(tied, embedding, head, search, label):
    storage = Storage.of(Q4, tied=tied, embedding=embedding, head=head, search=search)
    assert storage.label(tied=tied) == label
    assert embedding in (None, storage.embedding)
    assert head in (None, storage.head)
    assert not tied or storage.embedding is storage.head
    assert from_manifest(in_manifest(storage)) == storage


def test_contradictory_storage_is_refused() -> None:
    with pytest.raises(UserError, match="the model's head is its embedding"):
        Storage.of(Q4, tied=True, embedding=BF16, head=Q8)
    for asked in ({"head": Q8}, {"embedding": F32}, {"search": False}):
        with pytest.raises(UserError, match="layers in bf16 go with"):
            Storage.of(BF16, tied=False, **asked)


def test_f32_vectors_beside_bf16_are_recorded() -> None:
    storage = replace(Storage.of(BF16, tied=False), vectors_f32=True)
    assert storage.label(tied=False) == "bf16-vectors-f32"
    fields = in_manifest(storage)
    assert (fields["precision"], fields["vectors"]) == ("bf16", "f32")
    assert not {"precisions", "search"} & fields.keys()
    assert from_manifest(fields) == storage
    spec = BlobSpec((MatrixSpec("q", "s", 128, 64, 64),), (VectorSpec("a", "va", 60),))
    layout, usual = storage.layout(0, spec), Storage.of(BF16, tied=False).layout(0, spec)
    assert ([v.precision for v in layout.vectors], layout.precision) == ([F32], BF16)
    assert layout.descriptor() != usual.descriptor()
    assert "vector_precisions" not in usual.descriptor()


@pytest.mark.parametrize(
    "storage", [Storage.of(F32, tied=False), Storage.of(Q8, tied=True), Storage.of(Q4, tied=True, head=F32)]
)
def test_redundant_f32_vectors_are_refused(storage: Storage) -> None:
    """One content has one name."""
    with pytest.raises(UserError, match="vectors are f32 anyway"):
        replace(storage, vectors_f32=True)
    with pytest.raises(UserError, match="vectors are f32 anyway"):
        from_manifest(in_manifest(storage) | {"vectors": "f32"}).label(tied=False)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from([p.value for p in Precision]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["embedding", "head", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["precision", "precisions", "search", "vectors"]), json_values))
def test_random_storage_fields_are_valid_or_refused(fields: dict[str, object]) -> None:
    try:
        found = from_manifest(in_manifest(Storage.of(F32, tied=False)) | fields)
    except (UserError, msgspec.ValidationError):
        return
    assert from_manifest(in_manifest(found)) == found
