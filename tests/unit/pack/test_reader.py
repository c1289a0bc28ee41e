import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.pack.stored import SHAPE, flip
from tpiedge.errors import IntegrityError, ProtocolError, ReadFault, TpiedgeError, UserError
from tpiedge.pack.manifest import load_manifest, manifest_text
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.share import Share
from tpiedge.pack.specs import Precision
from tpiedge.wire.fields import ShareRanges

MakePack = Callable[..., Pack]


def test_pack_reports_its_contents(make_pack: MakePack) -> None:
    pack = make_pack(Precision.BF16)
    assert (pack.precision, pack.num_layers, pack.config["hidden_size"]) == (Precision.BF16, 2, 60)
    assert pack.keys == ("embedding", 0, 1, "head")
    assert pack.head_matrix == ("head", "head")
    assert pack.whole == SHAPE.whole
    assert pack.nbytes == sum(pack.blob_path(key).stat().st_size for key in pack.keys)
    with pytest.raises(UserError, match="has layers 0 to 1, not 2"):
        pack.layout(2)


def test_a_tied_head_is_the_embedding(make_pack: MakePack) -> None:
    pack = make_pack(tied=True)
    assert pack.head_matrix == ("embedding", "embedding")
    assert [vector.name for vector in pack.layout("head").vectors] == ["final_norm"]


@pytest.mark.parametrize("fast", [True, False])
def test_verify_names_the_damage(make_pack: MakePack, fast: bool) -> None:
    pack = make_pack()
    verify_pack(pack, fast=fast)
    flip(pack.blob_path(1), pack.layout(1).matrix("down").span(1, 2)[0] + 17)
    with pytest.raises(IntegrityError, match=f"unit 1 of down of .*{pack.blob_id(1)}"):
        verify_pack(pack, fast=fast)
    flip(pack.blob_path(0).with_suffix(".hashes"), 40)
    with pytest.raises(IntegrityError, match="the table of hashes"):
        pack.hashes(0)


def test_missing_and_short_files_are_refused(make_pack: MakePack) -> None:
    pack = make_pack()
    path = pack.blob_path(0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4096])
    with pytest.raises(UserError, match=f"has {len(whole) - 4096} bytes instead of {len(whole)}"):
        Pack.open(pack.path)
    with pytest.raises(ReadFault, match="the file ends before"):
        verify_pack(pack)
    path.unlink()
    with pytest.raises(UserError, match="the pack lacks"):
        Pack.open(pack.path)
    path.with_suffix(".hashes").unlink()
    with pytest.raises(UserError, match="the pack lacks"):
        pack.hashes(0)


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_folder_without_pack_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UserError, match="is not a pack"):
        Pack.open(tmp_path / folder)


def _edit(path: Path, change: Callable[[dict[str, Any]], None], *, sign: bool = True) -> None:
    from tpiedge.pack.manifest import _checksum

    document = json.loads(path.read_text())
    change(document["manifest"])
    if sign:
        document["checksum"] = _checksum(document["manifest"])
    path.write_text(json.dumps(document))


def matrices(manifest: dict[str, Any]) -> list[Any]:
    return manifest["spec"]["layers"][0]["matrices"]


BAD_HEAD = r"matching regex .* - at `\$\.blobs\.head`"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m.update(version=2), "a pack of version 2, not 1: pack again"),
        (
            lambda m: m.update(version=4),
            "not a pack of version 1 to 3: pack again with this tpiedge, or install",
        ),
        (lambda m: m["spec"]["config"].update(layers=[]), "a pack of version 1, not 3: pack again"),
        (lambda m: m.update(format="zip"), "not a pack of version"),
        (lambda m: m.update(version=True), "not a pack of version|Expected `int`, got `bool`"),
        (lambda m: m.update(precision="q3"), r"'q3' - at `\$\.precision`"),
        (lambda m: m.update(precision=[]), r"got `array` - at `\$\.precision`"),
        (lambda m: m["spec"].update({"\ud800": 1}), r"surrogates not allowed\): pack again"),
        (lambda m: m.pop("spec"), "missing required field `spec`"),
        (lambda m: m.update(spec=[]), r"Expected `object`, got `array` - at `\$\.spec`"),
        (lambda m: m["spec"].update(layers={}), r"Expected `array`, got `object` - at `\$\.spec\.layers`"),
        (lambda m: m["spec"].update(layers=[]), "0 blobs|2 blobs|0 layers"),
        (lambda m: matrices(m)[0].append(1), "Expected `array` of at most length 6, got 7"),
        (lambda m: matrices(m).__setitem__(0, 5), r"Expected `array`, got `int` - at `.*\[0\]`"),
        (lambda m: matrices(m)[0].__setitem__(2, 1 << 70), r"Expected `int` .* - at `.*\[0\]\[2\]`"),
        (lambda m: m["blobs"].update(head="../../etc/passwd"), BAD_HEAD),
        (lambda m: m["blobs"].update(head="A" * 64), BAD_HEAD),
        (lambda m: m["blobs"].update(head=m["blobs"]["head"] + "\n"), BAD_HEAD),
        (lambda m: m["blobs"]["layers"].pop(), "1 blob for 2 layers"),
        (lambda m: m.update(distinct_layers=9), "distinct_layers"),
        (lambda m: m.update(source=1), r"Expected `str`, got `int` - at `\$\.source`"),
    ],
)
def test_a_hostile_manifest_is_a_users_error(make_pack, change, complaint):
    pack = make_pack()
    _edit(pack.path / "manifest.json", change)
    with pytest.raises(UserError, match=complaint) as caught:
        Pack.open(pack.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 1}, "a pack of version 1, not 2: pack again"),
        ({"precision": None}, r"got `null` - at `\$\.precision`"),
        (
            {"precisions": {"head": "q3"}},
            r"'q3' - at `\$\.precisions\.head` \(f32, bf16, q8, q4, .*mxfp4\): pack again",
        ),
        ({"precisions": {"head": {}}}, r"got `object` - at `\$\.precisions\.head`"),
        ({"precisions": {"layers": "q4"}}, r"unknown field `layers` - at `\$\.precisions`"),
        ({"precisions": ["head"]}, r"got `array` - at `\$\.precisions`"),
        ({"search": 1}, r"got `int` - at `\$\.search`"),
        ({"vectors": ["f32"]}, r"got `array` - at `\$\.vectors`"),
        ({"vectors": "bf16"}, r"'bf16' - at `\$\.vectors`"),
        (
            {"kept": {"model.layers.0.q_proj.weight": "q3"}},
            r"'q3' - at `\$\.kept\[\.\.\.\]` \(f32, .*mxfp4\)",
        ),
        ({"kept": {"model.layers.0.q_proj.weight": "bf16"}}, "in bf16 in layers of q4"),
        ({"kept": {"lm_head.weight": "q4_k"}}, "no layer has the matrix 'lm_head.weight'"),
        ({"kept": ["q4_k"]}, r"got `array` - at `\$\.kept`"),
        ({"precision": "bf16"}, "layers in bf16 go with"),
        (
            {"precision": "f32", "precisions": {"embedding": "f32", "head": "f32"}, "search": False},
            "layers in f32",
        ),
        # Sizes tell these from the truth; equal sizes, the table of hashes.
        ({"precision": "q8"}, r"bytes instead of"),
        ({"kept": {"model.layers.0.down_proj.weight": "q8"}}, r"bytes instead of"),
        ({"precisions": {"embedding": "q8", "head": "q8"}}, r"bytes instead of"),
    ],
)
def test_wrong_precisions_in_manifest_are_refused(make_pack, change, complaint):
    pack = make_pack(Precision.Q4)
    _edit(pack.path / "manifest.json", lambda manifest: manifest.update(change))
    with pytest.raises(UserError, match=complaint):
        Pack.open(pack.path)


def test_wrong_vector_precision_fails_verification(make_pack: MakePack) -> None:
    """The sections have the same pages: the table of hashes tells."""
    pack = make_pack(Precision.BF16)
    _edit(pack.path / "manifest.json", lambda manifest: manifest.update(vectors="f32"))
    with pytest.raises(IntegrityError):
        verify_pack(Pack.open(pack.path))


def test_damaged_manifest_is_refused(make_pack: MakePack) -> None:
    pack = make_pack()
    path = pack.path / "manifest.json"
    _edit(path, lambda m: m["spec"]["config"].update(hidden_size=61), sign=False)
    with pytest.raises(UserError, match="checksum differs"):
        Pack.open(pack.path)
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not JSON"):
        Pack.open(pack.path)


def test_layer_with_blob_of_other_shape_is_refused(make_pack: MakePack) -> None:
    pack = make_pack()
    path = pack.path / "manifest.json"

    def swap_rows_and_units(manifest: dict[str, Any]) -> None:
        for matrix in matrices(manifest)[:2]:
            matrix[5] = True  # same size, another meaning

    _edit(path, swap_rows_and_units)
    with pytest.raises(IntegrityError, match="the table of hashes"):
        Pack.open(pack.path).hashes(0)


@pytest.mark.parametrize("part", ["manifest.json", "blob", "hashes"])
def test_a_pipe_is_refused_without_waiting(make_pack: MakePack, part: str) -> None:
    pack = make_pack()
    blob = pack.blob_path("head")
    path = {"manifest.json": pack.path / part, "blob": blob, "hashes": blob.with_suffix(".hashes")}[part]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TpiedgeError, match="not a regular file") as raised:
        Pack.open(pack.path).hashes("head")
    assert str(raised.value).isprintable()


def test_one_blob_under_two_layouts_is_refused(make_pack: MakePack) -> None:
    pack = make_pack()
    manifest = load_manifest(pack.path)
    blobs = manifest.blobs
    hostile = replace(manifest, blobs=replace(blobs, layers=(blobs.layers[0], blobs.embedding)))
    (pack.path / "manifest.json").write_bytes(manifest_text(hostile))
    with pytest.raises(UserError, match="one blob two layouts"):
        Pack.open(pack.path)


def test_oversized_manifest_is_refused_unparsed(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"[" + b"[]," * 2_000_000 + b"[]]")
    tracemalloc.start()
    with pytest.raises(UserError, match="larger than any pack's"):
        load_manifest(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6


def test_share_is_read_back_from_its_message(make_pack: MakePack) -> None:
    pack = make_pack()
    part = SHAPE.share(Share(2, 4), Share(1, 1))
    assert part.ranges == ShareRanges((0, 2), (("attention", (2, 4)),))
    for share in (part, SHAPE.share(Share(0), Share(1)), SHAPE.whole):
        assert pack.share_of(share.ranges).ranges == share.ranges
    assert hash(pack.share_of(SHAPE.whole.ranges)) == hash(SHAPE.whole)


@pytest.mark.parametrize(
    ("layers", "axes", "words"),
    [
        ((0, 1), (), r"the plan has layers [0, 1), a node has all 2"),
        ((1, 2), (), r"the plan has layers [1, 2), a node has all 2"),
        ((0, 3), (), r"the plan has layers [0, 3), a node has all 2"),
        ((0, 2), (("ffn", (1, 3)),), "the plan has units [1, 3) of 'ffn', the model 2"),
        ((0, 2), (("experts", (0, 1)),), "the plan has units [0, 1) of 'experts', the model 0"),
    ],
)
def test_shares_that_the_pack_lacks_are_refused(make_pack, layers, axes, words):
    pack = make_pack()
    with pytest.raises(ProtocolError) as error:
        pack.share_of(ShareRanges(layers, axes))
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("stored", "golden"),
    [("f32", "ca5be65c4f14"), ("bf16", "dd13c529ba57"), ("q8", "1af4609dc8b8"), ("q4", "937ed73b5eec")],
)
def test_packs_without_a_list_of_layers_keep_their_ids(make_pack: MakePack, stored: str, golden: str) -> None:
    assert make_pack(Precision(stored)).id[:12] == golden
