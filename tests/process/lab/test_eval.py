"""`tpiedge eval` says what transformers says of the same tokens, and ends in one line where it cannot measure."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.command import Ended, run_command
from tests.process.lab.refused import refusal
from tests.process.models import build_text_model

LENGTH = 120
pytestmark = pytest.mark.usefixtures("one_fork_server")


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(3)
    text = " ".join(draw.choice("bcdfghjklm") + draw.choice("aeiou") for _ in range(LENGTH))
    path = tmp_path_factory.mktemp("eval") / "words.txt"
    path.write_text(text)
    return path


def distributions(folder: Path, ids: list[int]):
    """[tokens, vocabulary] of transformers, as logarithms."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def log_probabilities(folder: Path, ids: list[int]):
    """[tokens - 1] of transformers: of each token but the first, given all before it."""
    import torch

    logs = distributions(folder, ids)
    return logs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def token_ids(folder: Path, text: Path) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text()).ids
    assert len(ids) == LENGTH
    return ids


def only_line(ended: Ended) -> dict:
    assert ended.status == 0, ended.err
    (record,) = map(json.loads, ended.out.splitlines())
    assert isinstance(record, dict)
    return record


def test_perplexity_is_that_of_transformers(
    here: Callable[..., Ended], text_model: Path, words: Path
) -> None:
    nodes = 2
    flags = ("--text", words, "--nodes", nodes, "--threads", 1, "--json")
    record = only_line(here("eval", "perplexity", "--model", text_model, *flags))
    expected = -float(log_probabilities(text_model, token_ids(text_model, words)).mean())
    assert record["nats_per_token"] == pytest.approx(expected, rel=1e-5)
    assert record["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert (record["tokens"], record["scored_tokens"], record["nodes"]) == (LENGTH, LENGTH - 1, nodes)
    of_text = record["bits_per_byte"] * record["bytes"]
    assert of_text == pytest.approx(expected * (LENGTH - 1) / math.log(2), rel=1e-5)
    assert record["bytes"] == len(words.read_text()) - 2  # the first word has no score


def test_a_precision_is_compared_with_f32(here: Callable[..., Ended], text_model: Path, words: Path) -> None:
    bf16 = ("--text", words, "--precision", "bf16", "--threads", 1, "--json")
    found = only_line(here("eval", "agreement", "--model", text_model, *bf16))
    alone = only_line(run_command("eval", "perplexity", "--model", text_model, *bf16))
    reference = math.exp(-float(log_probabilities(text_model, token_ids(text_model, words)).mean()))
    assert (found["precision"], found["reference"]["precision"]) == ("bf16", "f32")
    assert found["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-5)
    assert found["reference_perplexity"] == pytest.approx(reference, rel=1e-4)
    assert found["perplexity"] != pytest.approx(reference, rel=1e-6)
    assert 0 < found["kl_nats"]["mean"] <= found["kl_nats"]["p95"] <= found["kl_nats"]["max"] < 0.1
    assert 0.8 < found["top1_agreement"] <= 1


@pytest.fixture(scope="session")
def narrow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text model's vocabulary with other weights and fewer positions than the text has words."""
    folder = tmp_path_factory.mktemp("narrow") / "narrow"
    return build_text_model(folder, hidden_size=32, num_hidden_layers=1, max_position_embeddings=100)


def test_agreement_compares_with_a_reference_model(
    here: Callable[..., Ended], text_model: Path, narrow_model: Path, words: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text(" ".join(words.read_text().split()[:90]))
    models = ("--model", text_model, "--reference-model", narrow_model, "--precision", "f32")
    found = only_line(here("eval", "agreement", *models, "--text", few, "--threads", 1, "--json"))
    ids = token_ids(text_model, words)[:90]
    model, reference = (distributions(folder, ids)[:-1] for folder in (text_model, narrow_model))
    divergence = (reference.exp() * (reference - model)).sum(-1)
    same = (reference.argmax(-1) == model.argmax(-1)).double().mean()
    assert found["reference"]["model"] == str(narrow_model)
    assert found["kl_nats"]["mean"] == pytest.approx(float(divergence.mean()), rel=1e-4)
    assert found["kl_nats"]["max"] == pytest.approx(float(divergence.max()), rel=1e-4)
    assert found["top1_agreement"] == pytest.approx(float(same))
    assert found["positions"] == 89
    for figure, folder in (("perplexity", text_model), ("reference_perplexity", narrow_model)):
        expected = math.exp(-float(log_probabilities(folder, ids).mean()))
        assert found[figure] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("verb", ["perplexity", "agreement"])
@pytest.mark.parametrize(
    ("text", "flags", "complaint"),
    [
        (None, (), "nowhere.txt: No such file"),
        ("", (), "is empty"),
        ("ba", (), "has 1 token"),
        ("ba ce", ("--context", 1), "leaves no token"),
        ("ba ce", ("--precision", "q3"), "'q3' is not one of"),
        ("ba ce", ("--threads", 0), "--threads 0 is out of range"),
    ],
)
def test_invalid_eval_input_gives_a_one_line_error(
    text_model: Path, tmp_path: Path, verb: str, text: str | None, flags: tuple[object, ...], complaint: str
) -> None:
    path = tmp_path / "nowhere.txt"
    if text is not None:
        path = tmp_path / "given.txt"
        path.write_text(text)
    cache = ("--cache", tmp_path / "cache")
    status, words = refusal("eval", verb, "--model", text_model, "--text", path, *cache, *flags)
    assert status == 2
    assert complaint in words
