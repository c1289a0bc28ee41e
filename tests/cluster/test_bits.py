"""q8 and q4 with the native kernels: the same bits of logits for every split, collective, chunking, number of threads
and instruction set, on one node or several, with weights in memory or streamed."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.cluster.alone import AloneOf
from tests.cluster.packs import SPLITS, Packs, References, packed, sampled, shares_of, split
from tests.cluster.test_exactness import assert_close
from tests.cluster.test_streaming import PLACEMENTS
from tests.fakes.cluster import InProcessCluster
from tests.reference import CASES, FAMILIES
from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.memory.conftest import narrow
from tests.unit.model.gguf_files import TinyGguf
from tests.unit.model.int4_files import Int4Checkpoint
from tests.unit.model.mxfp4_files import GptOssCheckpoint
from tests.unit.model.test_gguf import packed as import_gguf
from tpiedge.collectives.communicator import Route
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.quantised import FORMAT_OF
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.planner.needs import LayerShape
from tpiedge.planner.solve import parse_shares, partition
from tpiedge.wire.fields import KVPrecision

QUANTISED = [Precision.Q8, Precision.Q4]
KV: list[KVPrecision] = ["f32", "bf16", "q8", "q4"]

pytestmark = pytest.mark.usefixtures("_native")


@pytest.fixture(scope="session")
def _native() -> None:
    if kernel_library() is None:
        pytest.skip("native: without its kernels bits depend on the split")


def logits_of(cluster: InProcessCluster, text: Sequence[int]) -> torch.Tensor:
    with cluster:
        return cluster.logits(text)


MIXTURES = "qwen3-moe", "gpt-oss", "gemma4-a4b"
#: One case and mixtures by all splits, and every family in every way.
TRIED = dict.fromkeys(
    [
        *(("llama-gqa-odd", one, shares, False) for group in SPLITS for shares in group for one in QUANTISED),
        *((name, Precision.Q4, shares, False) for name in MIXTURES for group in SPLITS for shares in group),
        *((name, QUANTISED[one], *way) for name, *way, one in sampled((*CASES, *FAMILIES))),
    ]
)
#: Of every family, and cases with other shapes.
OF_EACH = [name for name, _, shares, _ in TRIED if shares == "1" and not name.startswith("llama")]
OF_EACH = [*dict.fromkeys([*OF_EACH, "llama-gqa-odd", "openllama", "qwen3-biases", *MIXTURES])]


@pytest.mark.parametrize(("name", "precision", "shares", "streamed"), TRIED)
def test_logits_are_bit_identical_for_every_split(
    name: str, precision: Precision, shares: str, streamed: bool, references: References, alone: AloneOf
) -> None:
    expected, placement = alone(name, precision), narrow if streamed else None
    cluster = InProcessCluster(expected.pack, split(references(name), shares), placement=placement)
    assert torch.equal(logits_of(cluster, expected.text), expected.logits_TV)


@pytest.mark.parametrize("shares", ["1,2,0:1,1"])
@pytest.mark.parametrize("way", ["star", "mesh", "two-shot"])
@pytest.mark.parametrize("precision", QUANTISED)
def test_logits_are_bit_identical_for_every_collective(
    way: str, precision: Precision, shares: str, references: References, alone: AloneOf
) -> None:
    expected = alone("llama-gqa-odd", precision)
    cluster = InProcessCluster(
        expected.pack,
        split(references("llama-gqa-odd"), shares),
        limits=StepLimits(100, 4),
        route=Route(small=way, bulk=way),  # type: ignore[arg-type]
    )
    assert torch.equal(logits_of(cluster, expected.text), expected.logits_TV)


@pytest.mark.parametrize("placement", list(PLACEMENTS))
@pytest.mark.parametrize("shares", ["1", "1,0:1,3"])
@pytest.mark.parametrize("precision", QUANTISED)
def test_streamed_weights_give_bit_identical_logits(
    precision: Precision, shares: str, placement: str, references: References, alone: AloneOf
) -> None:
    expected = alone("mistral-sliding", precision)
    parts = split(references("mistral-sliding"), shares)
    cluster = InProcessCluster(expected.pack, parts, placement=PLACEMENTS[placement])
    assert torch.equal(logits_of(cluster, expected.text), expected.logits_TV)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize(("chunk", "shares"), [(1, "1"), (2, "2,1"), (7, "2,1"), (512, "2,1")])
def test_logits_are_bit_identical_for_every_chunk_size(
    shares: str, chunk: int, kv: KVPrecision, references: References, packs: Packs
) -> None:
    name = "llama-biases"
    pack, reference = packs(references(name), Precision.Q4), references(name)
    whole = InProcessCluster(pack, split(reference, "1"), kv=kv)
    text = reference.prompt_ids
    cut = InProcessCluster(pack, split(reference, shares), kv=kv, limits=StepLimits(chunk, chunk))
    assert torch.equal(logits_of(cut, text), logits_of(whole, text))


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_logits_of_experts_are_bit_identical_for_every_chunk_size(
    chunk: int, name: str, references: References, alone: AloneOf
) -> None:
    expected, reference = alone(name, Precision.Q4), references(name)
    cluster = InProcessCluster(expected.pack, split(reference, "2,1"), limits=StepLimits(chunk, chunk))
    assert torch.equal(logits_of(cluster, expected.text), expected.logits_TV)


@pytest.mark.parametrize(("precision", "head_dim"), [(Precision.Q4, 16), (Precision.Q4_ZERO, 32)])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_gptq_and_awq_logits_are_bit_identical_for_every_split(
    method: str, precision: Precision, head_dim: int, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    Int4Checkpoint(method, ffn=320, heads=4, head_dim=head_dim).write(folder)
    pack = packed(folder, precision, tmp_path / "pack")
    expected_TV, *others = (
        logits_of(InProcessCluster(pack, shares_of(folder, shares)), range(3, 60))
        for shares in ("1", "1,1", "1,0:2,1")
    )
    assert all(torch.equal(found_TV, expected_TV) for found_TV in others)


def test_experts_in_mxfp4_have_the_same_bits_for_every_split_and_their_numbers(
    tmp_path: Path, several_sets: Callable[..., None]
) -> None:
    folder, plain = tmp_path / "mxfp4", tmp_path / "plain"
    GptOssCheckpoint().write(folder, mxfp4=True)
    pack, text = packed(folder, None, tmp_path / "pack"), range(3, 60)
    expected_TV = logits_of(InProcessCluster(pack, shares_of(folder, "1")), text)
    several_sets(AVAILABLE, (1, 2))
    for shares in ("1", "1,1", "3,1", "1,0:1", "1,5,2", "1,1,1,1,1"):
        assert torch.equal(logits_of(InProcessCluster(pack, shares_of(folder, shares)), text), expected_TV)
    export_safetensors(Pack.open(pack), plain)
    (plain / "config.json").write_text(json.dumps(GptOssCheckpoint().values()))
    kept, unpacked = (
        logits_of(InProcessCluster(one, shares_of(plain, "2,1"), compute="f32"), text)
        for one in (pack, packed(plain, Precision.F32, tmp_path / "f32"))
    )
    assert_close(kept, unpacked.numpy())


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("name", OF_EACH)
def test_logits_are_bit_identical_for_every_instruction_set(
    name: str,
    precision: Precision,
    isa: str,
    references: References,
    alone: AloneOf,
    several_sets: Callable[..., None],
) -> None:
    expected = alone(name, precision)
    several_sets([isa])
    found_TV = logits_of(InProcessCluster(expected.pack, split(references(name), "1")), expected.text)
    assert torch.equal(found_TV, expected.logits_TV)


@pytest.mark.parametrize(
    "name",
    ["llama-gqa-odd", "qwen2-tied", "qwen3-biases", "gemma3", "phi4-mini-short", "olmo2", *MIXTURES],
)
def test_nodes_with_mixed_instruction_sets_give_bit_identical_logits(
    name: str, references: References, alone: AloneOf, several_sets: Callable[..., None]
) -> None:
    expected = alone(name, Precision.Q4)
    several_sets(AVAILABLE, (1, 2, 3, 4))
    cluster = InProcessCluster(expected.pack, split(references(name), "1,2,1,1"))
    assert torch.equal(logits_of(cluster, expected.text), expected.logits_TV)


#: SHA-256 of the logits of the demo model, f32 in little-endian order: of every machine and build.
GOLDEN = {
    Precision.Q8: "c82b42025c40f312471bc81a268583d11e1211b03a118104faa0c55d93a900c1",
    Precision.Q4: "ad85ee5c35df16b95f35cb05ca10c65dbcd55b3e4b3bf0f2232499189dbb3f93",
}


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("precision", QUANTISED)
def test_demo_logits_match_golden_hash_on_every_instruction_set(
    precision: Precision, isa: str, tmp_path: Path, several_sets: Callable[..., None]
) -> None:
    folder = resolve_model(DEMO)
    pack = packed(folder, precision, tmp_path / "pack")
    several_sets([isa])
    logits_TV = logits_of(InProcessCluster(pack, shares_of(folder, "1")), range(3, 40))
    assert hashlib.sha256(logits_TV.numpy().astype("<f4").tobytes()).hexdigest() == GOLDEN[precision]


#: The same of a small model of random blocks, by the type of its file.
GOLDEN_OF_TYPES = {
    "Q8_0": "52dde7878e6a92dd",
    "Q4_0": "1e8b9eeda075592e",
    "Q4_1": "bd65c5896a2e4f20",
    "Q5_0": "ad8da880677473cf",
    "Q5_1": "05aa37c8a8816b41",
    "Q4_K": "ba6d138b75a33be2",
    "Q5_K": "3c78b16a294b12b3",
    "Q6_K": "3b73a152d13dcb57",
    "IQ4_NL": "19dc9bc77855dbd1",
    "MXFP4": "81a037b2f2a7ab28",
}


@pytest.mark.parametrize("kind", FORMAT_OF)
def test_kept_types_give_golden_logits_for_every_split_and_instruction_set(
    kind: str, tmp_path: Path, several_sets: Callable[..., None]
) -> None:
    sizes = {"hidden": 256, "heads": 8, "kv_heads": 2, "head_dim": 64, "ffn": 512}
    mixed = {"ffn_down": "Q6_K", "attn_v": "Q5_0"}  # beside it, as in the files that people have
    path = TinyGguf(kinds={"": kind, **mixed}, layers=2, **sizes).write(tmp_path / "f.gguf")
    pack, _ = import_gguf(path, None, tmp_path)
    assert {matrix.precision.value for matrix in pack.layout(1).matrices} >= {
        FORMAT_OF[kind].name,
        "q6_k",
        "q5_0",
    }
    several_sets(AVAILABLE, (1, 2))
    for shares in ("1", "1,1", "3,1", "1,0:1", "1,5,2", "1,1,1,1,1"):
        weights = parse_shares(shares, shares.count(",") + 1)
        cluster = InProcessCluster(pack.path, partition(LayerShape(8, 2, 4, 2), weights))
        found = hashlib.sha256(logits_of(cluster, range(3, 60)).numpy().astype("<f4").tobytes()).hexdigest()
        assert found[:16] == GOLDEN_OF_TYPES[kind], (kind, shares)


def test_experts_of_kept_types_give_bit_identical_logits_for_every_split(tmp_path: Path) -> None:
    sizes = {"hidden": 256, "heads": 8, "kv_heads": 2, "head_dim": 64, "ffn": 512, "experts": 5}
    kinds = {"": "Q4_K", "blk.1.ffn_down_exps": "Q6_K", "blk.1.attn_v": "Q6_K", "ffn_gate_inp": "F32"}
    keys = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 512}
    named = {f"qwen3moe.{key}": value for key, value in keys.items()}
    path = TinyGguf("qwen3moe", kinds=kinds, keys=named, layers=2, **sizes).write(tmp_path / "f.gguf")
    pack, _ = import_gguf(path, None, tmp_path)
    expected_TV, *others = (
        logits_of(
            InProcessCluster(
                pack.path, partition(LayerShape(8, 2, 0, 2, 8), parse_shares(shares, shares.count(",") + 1))
            ),
            range(3, 60),
        )
        for shares in ("1", "1,1", "3,1", "1,0:1", "1,5,2")
    )
    assert expected_TV.isfinite().all()
    assert all(torch.equal(found_TV, expected_TV) for found_TV in others)
