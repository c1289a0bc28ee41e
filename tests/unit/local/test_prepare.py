import json
from pathlib import Path

import pytest

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.errors import UserError
from tpiedge.local.prepare import USUAL, choose_arithmetics, prepare, usual_sampling
from tpiedge.pack.specs import Precision
from tpiedge.wire.fields import Compute
from tpiedge.wire.requests import Sampling


@pytest.mark.parametrize(
    ("number", "kind"),
    [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last"), (4, "rank"), (9, "pooling_type 9")],
)
def test_gguf_pooling_type_is_read(tmp_path: Path, number: int | None, kind: str) -> None:
    keys = {} if number is None else {"llama.pooling_type": number}
    model = prepare(str(TinyGguf(keys=keys).write(tmp_path / "m.gguf")), None, None, tmp_path)
    assert model.usual_pooling == kind


def sampling_of(folder: Path, **values: object) -> Sampling:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return usual_sampling(folder)


def test_model_without_sampling_config_gets_the_defaults(tmp_path: Path) -> None:
    assert usual_sampling(None) == usual_sampling(tmp_path) == sampling_of(tmp_path, eos_token_id=2) == USUAL
    assert (USUAL.temperature, USUAL.top_p, USUAL.min_p) == (0.8, 0.95, 0.05)


def test_generation_config_sets_sampling_with_neutral_defaults(tmp_path: Path) -> None:
    assert sampling_of(tmp_path, temperature=0.6, top_p=0.9) == Sampling(temperature=0.6, top_p=0.9)
    found = sampling_of(
        tmp_path, temperature=0.7, top_k=20, top_p=0.8, min_p=0, repetition_penalty=1.05, do_sample=True
    )
    assert found == Sampling(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)
    assert sampling_of(tmp_path, top_k=-1, min_p=None) == Sampling(temperature=1.0)


def test_do_sample_false_means_greedy(tmp_path: Path) -> None:
    assert sampling_of(tmp_path, do_sample=False) == Sampling(temperature=0.0)
    found = sampling_of(tmp_path, do_sample=False, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    assert found == Sampling(temperature=0.0, top_p=0.9, repetition_penalty=1.1)
    assert sampling_of(tmp_path, do_sample=True) == sampling_of(tmp_path, do_sample=None) == USUAL


@pytest.mark.parametrize(
    ("key", "value"),
    [("do_sample", "no"), ("temperature", "hot"), ("top_k", 1.5), ("top_p", 0), ("repetition_penalty", -1)],
)
def test_invalid_generation_config_is_refused_by_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(UserError, match=f"generation_config.json: {key} is "):
        sampling_of(tmp_path, **{key: value})


def test_eos_id_beyond_the_vocabulary_is_ignored(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "<|im_end|>"],
        "tokenizer.ggml.scores": [0.0] * 6,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 4],
    }
    model = prepare(str(TinyGguf(vocab=6, keys=keys).write(tmp_path / "m.gguf")), None, None, tmp_path)
    assert model.end_ids == (2, 5)
    assert model.tokenizer.encode("a") == [1, 3, 4]
    folder = model.pack.path / "text"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|new|>"}))
    beyond = prepare(str(model.pack.path), None, None, tmp_path)
    assert (beyond.tokenizer.eos_id, beyond.end_ids) == (6, (2, 5))


@pytest.mark.parametrize(
    ("source", "precision", "compute", "chosen"),
    [
        (Precision.F32, None, None, (Precision.F32, "f32")),
        (Precision.BF16, None, None, (Precision.BF16, "f32")),
        (Precision.BF16, "f32", None, (Precision.BF16, "f32")),  # exact all the same
        (Precision.BF16, "f32", "f32", (Precision.F32, "f32")),
        (Precision.F32, "bf16", "bf16", (Precision.BF16, "bf16")),
        (Precision.F32, "q8", None, (Precision.Q8, "int8")),
        (Precision.BF16, "q4", None, (Precision.Q4, "int8")),
        (Precision.BF16, "q4", "int8", (Precision.Q4, "int8")),
        (Precision.BF16, "q4", "f32", (Precision.Q4, "f32")),
        (Precision.Q4, None, None, (Precision.Q4, "int8")),  # a pack
    ],
)
def test_precision_and_compute_are_chosen(source, precision, compute, chosen):
    assert choose_arithmetics(source, precision, compute) == chosen


@pytest.mark.parametrize(
    ("source", "precision", "compute"),
    [
        (Precision.F32, None, "bf16"),
        (Precision.BF16, "f32", "bf16"),
        (Precision.BF16, None, "int8"),
        (Precision.BF16, "q4", "bf16"),
        (Precision.Q8, None, "bf16"),
    ],
)
def test_unsupported_compute_is_refused(source: Precision, precision: str | None, compute: Compute) -> None:
    with pytest.raises(UserError, match=f"--compute {compute}"):
        choose_arithmetics(source, precision, compute)
