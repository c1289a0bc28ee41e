"""A checkpoint as a GGUF file gives transformers' tokens and logits of the checkpoint."""

from pathlib import Path

import pytest

from tests.cluster.packs import References, split
from tests.cluster.test_exactness import assert_close
from tests.fakes.cluster import InProcessCluster
from tests.process.gguf_of_checkpoint import write_gguf_of
from tests.unit.model.test_gguf import packed


@pytest.mark.parametrize(
    "name",
    [
        "olmo2",
        "olmo3",
        "phi3",
        "phi3 apart",
        "phi4-mini-long",
        "phi4-mini-turning",
        "olmoe",
        "mixtral",
        "gpt-oss",
    ],
)
def test_gguf_files_compute_what_the_checkpoint_does(
    name: str, references: References, tmp_path: Path
) -> None:
    reference = references(name.split()[0])
    path = write_gguf_of(reference.folder, tmp_path / "f.gguf", split="apart" in name)
    pack, _ = packed(path, None, tmp_path)
    with InProcessCluster(pack.path, split(reference, "2,1")) as cluster:
        tokens = cluster.greedy(reference.prompt_ids, len(reference.greedy_ids))
        logits_TV = cluster.logits(reference.prompt_ids)
    assert tuple(tokens) == reference.greedy_ids
    assert_close(logits_TV, reference.logits_TV)
