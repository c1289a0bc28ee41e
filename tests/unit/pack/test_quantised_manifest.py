"""Manifests of strangers that speak of precisions: checked, never believed."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import IntegrityError, UserError
from tpiedge.pack.layout import Storage
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.specs import Precision

Q8, Q4 = Precision.Q8, Precision.Q4
MakePack = Callable[..., Pack]


def rewrite(pack: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the manifest and give it the right checksum."""
    path = pack / MANIFEST_NAME
    body = json.loads(path.read_text())["manifest"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "manifest": body}))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 1}, "a pack of version 1, where q4 has 2: pack again"),
        ({"precision": "q3"}, "unknown precision 'q3'"),
        ({"precision": ["q4"]}, "unknown precision"),
        ({"precision": None}, "unknown precision"),
        ({"precisions": {"head": "q3"}}, "unknown precision 'q3'"),
        ({"precisions": {"head": {}}}, "unknown precision"),
        ({"precisions": {"layers": "q4"}}, "not those of the embedding and the head"),
        ({"precisions": "q4"}, "not those of the embedding and the head"),
        ({"precisions": ["head"]}, "not those of the embedding and the head"),
        ({"search": 1}, "search is not true or false"),
        ({"vectors": "bf16"}, "vectors is not f32"),
        ({"vectors": ["f32"]}, "vectors is not f32"),
        ({"precision": "bf16"}, "layers in bf16 go with"),
        (
            {"precision": "f32", "precisions": {"embedding": "f32", "head": "f32"}, "search": False},
            "layers in f32",
        ),
        # Sizes tell these from the truth; equal sizes, the table of hashes.
        ({"precision": "q8"}, r"bytes instead of"),
        ({"precisions": {"embedding": "q8", "head": "q8"}}, r"bytes instead of"),
    ],
)
def test_a_manifest_is_not_believed(make_pack: MakePack, change: dict[str, object], complaint: str) -> None:
    pack = make_pack(Q4)
    rewrite(pack.path, lambda body: body.update(change))
    with pytest.raises(UserError, match=complaint):
        Pack.open(pack.path)


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
def test_any_fields_are_a_storage_or_an_error(fields: dict[str, object]) -> None:
    try:
        found = Storage.from_json(fields)  # type: ignore[arg-type]
    except UserError:
        return
    assert Storage.from_json(found.to_json()) == found


def test_a_wrong_width_of_the_vectors_is_noticed(make_pack: MakePack) -> None:
    """The sections have the same pages: the table of hashes tells."""
    pack = make_pack(Precision.BF16)
    rewrite(pack.path, lambda body: body.update(vectors="f32"))
    with pytest.raises(IntegrityError):
        verify_pack(Pack.open(pack.path))
