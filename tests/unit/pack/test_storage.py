import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.pack.hashes import blob_id
from tpiedge.pack.layout import Storage
from tpiedge.pack.manifest import BlobIds, Manifest, manifest_text, pack_id
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


def test_matrices_with_another_precision_are_recorded() -> None:
    q = MatrixSpec("q", "s", 128, 64, 64)
    spec = BlobSpec((q, msgspec.structs.replace(q, name="k", source="t")))
    storage = replace(Storage.of(Q4, tied=False), kept={"t": Precision.Q6_K})
    assert storage.label(tied=False) == "kept-q4"
    fields = in_manifest(storage)
    assert fields["kept"] == {"t": "q6_k"}
    assert from_manifest(fields) == storage
    layout, usual = storage.layout(0, spec), Storage.of(Q4, tied=False).layout(0, spec)
    assert [one.precision for one in layout.matrices] == [Q4, Precision.Q6_K]
    assert layout.descriptor() == {**usual.descriptor(), "matrix_precisions": {"k": "q6_k"}}
    assert storage.layout("head", spec).matrices == Storage.of(Q4, tied=False).layout("head", spec).matrices
    for layers, kept in ((Q4, F32), (BF16, Q8)):
        with pytest.raises(UserError, match=f"t in {kept.value} in layers of {layers.value}"):
            replace(Storage.of(layers, tied=False), kept={"t": kept})


@pytest.mark.parametrize(
    ("storage", "identity", "blob"),
    [
        (Storage.of(F32, tied=True), "ac26fa5faa7894f2", "8584dd98591b2d99"),
        (Storage.of(BF16, tied=True), "cfb91dcdde145bd9", "785e67bd226f5d56"),
        (Storage.of(Q8, tied=True), "8504d452ca8c2171", "982450c2d8f58fa5"),
        (Storage.of(Q4, tied=True, search=False), "8c2291eb0c0df02b", "af1f20a67b76fc5c"),
    ],
)
def test_ids_of_packs_do_not_change(storage: Storage, identity: str, blob: str) -> None:
    spec = replace(SPEC, layers=(BlobSpec((MatrixSpec("q", "s", 4, 6, 4),)),))
    manifest = Manifest.of(spec, storage, "s", 1, BlobIds("a" * 64, ("b" * 64,), "c" * 64))
    layout = storage.layout(0, spec.layers[0])
    assert pack_id(manifest_text(manifest))[:16] == identity
    assert blob_id(layout, bytes(36 * layout.range_count))[:16] == blob


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


@given(
    st.dictionaries(st.sampled_from(["precision", "precisions", "kept", "search", "vectors"]), json_values)
)
def test_random_storage_fields_are_valid_or_refused(fields: dict[str, object]) -> None:
    try:
        found = from_manifest(in_manifest(Storage.of(F32, tied=False)) | fields)
    except (UserError, msgspec.ValidationError):
        return
    assert from_manifest(in_manifest(found)) == found
