import json
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.local.prepare import USUAL, usual_sampling
from tpiedge.wire.requests import Sampling


def of(folder: Path, **values: object) -> Sampling:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return usual_sampling(folder)


def test_a_model_that_says_nothing(tmp_path: Path) -> None:
    assert usual_sampling(None) == usual_sampling(tmp_path) == of(tmp_path, eos_token_id=2) == USUAL
    assert (USUAL.temperature, USUAL.top_p, USUAL.min_p) == (0.8, 0.95, 0.05)


def test_what_a_model_says_counts_and_the_rest_is_neutral(tmp_path: Path) -> None:
    assert of(tmp_path, temperature=0.6, top_p=0.9) == Sampling(temperature=0.6, top_p=0.9)
    found = of(
        tmp_path, temperature=0.7, top_k=20, top_p=0.8, min_p=0, repetition_penalty=1.05, do_sample=True
    )
    assert found == Sampling(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)
    assert of(tmp_path, top_k=-1, min_p=None) == Sampling(temperature=1.0)


def test_a_model_that_is_not_drawn_from_is_greedy(tmp_path: Path) -> None:
    assert of(tmp_path, do_sample=False) == Sampling(temperature=0.0)
    found = of(tmp_path, do_sample=False, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    assert found == Sampling(temperature=0.0, top_p=0.9, repetition_penalty=1.1)
    assert of(tmp_path, do_sample=True) == of(tmp_path, do_sample=None) == USUAL


@pytest.mark.parametrize(
    ("key", "value"),
    [("do_sample", "no"), ("temperature", "hot"), ("top_k", 1.5), ("top_p", 0), ("repetition_penalty", -1)],
)
def test_what_it_cannot_mean_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(UserError, match=f"generation_config.json: {key} is "):
        of(tmp_path, **{key: value})
