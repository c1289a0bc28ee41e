import json
from pathlib import Path

import pytest

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.errors import UserError
from tpiedge.local.packing import keep_text_files
from tpiedge.local.prepare import prepare
from tpiedge.model.config import pooling_config, usual_pooling


def of(folder: Path, **values: object) -> str:
    inner = folder / "1_Pooling"
    inner.mkdir(exist_ok=True)
    (inner / "config.json").write_text(json.dumps(values))
    return usual_pooling(folder)


def test_a_model_that_says_nothing(tmp_path: Path) -> None:
    assert (
        usual_pooling(None) == usual_pooling(tmp_path) == of(tmp_path, word_embedding_dimension=8) == "mean"
    )


def test_the_words_of_sentence_transformers(tmp_path: Path) -> None:
    kinds = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")
    modes = {f"pooling_mode_{kind}": False for kind in kinds}
    assert of(tmp_path, **modes | {"pooling_mode_lasttoken": True, "include_prompt": True}) == "last"
    assert of(tmp_path, **modes | {"pooling_mode_mean_tokens": True}) == "mean"
    assert of(tmp_path, **modes | {"pooling_mode_cls_token": True}) == "cls"
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert of(tmp_path, **modes | both) == "mean and max_tokens"
    assert of(tmp_path, pooling_mode="lasttoken") == "last"
    for kind in ("mean", "last", "cls"):
        assert of(tmp_path, **pooling_config(kind)) == kind


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1_Pooling/config\.json: pooling_mode_lasttoken is 'yes'"):
        of(tmp_path, pooling_mode_lasttoken="yes")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "1_Pooling").symlink_to(tmp_path / "1_Pooling")
    with pytest.raises(UserError, match="links to a file outside"):
        usual_pooling(tmp_path / "model")


def test_a_pack_keeps_it(tmp_path: Path) -> None:
    of(tmp_path, pooling_mode_lasttoken=True)
    (tmp_path / "config.json").write_text("{}")
    keep_text_files(tmp_path, tmp_path / "text")
    assert usual_pooling(tmp_path / "text") == "last"


@pytest.mark.parametrize(
    ("number", "kind"),
    [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last"), (4, "rank"), (9, "pooling_type 9")],
)
def test_a_gguf_file_says_it_by_a_number(tmp_path: Path, number: int | None, kind: str) -> None:
    keys = {} if number is None else {"llama.pooling_type": number}
    model = prepare(str(TinyGguf(keys=keys).write(tmp_path / "m.gguf")), None, None, tmp_path)
    assert model.usual_pooling == kind
