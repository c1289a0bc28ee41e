"""Models are compared where the same id is the same token."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer as Backend
from tokenizers import models

from tpiedge.errors import UserError
from tpiedge.lab.evaluation import text as reference
from tpiedge.lab.evaluation.text import refuse_other_vocabulary
from tpiedge.lab.verbs import eval as eval_agreement
from tpiedge.lab.verbs.eval import agreement
from tpiedge.local.prepare import PreparedModel
from tpiedge.model.text_child import LoadedTokenizer
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.layout import Precision
from tpiedge.pack.manifest import MANIFEST_NAME


def model(
    name: str, words: Sequence[str] | None = None, added: Sequence[str] = (), rows: int = 8
) -> PreparedModel:
    """With an embedding of so many rows; without a tokenizer where there are no words."""
    backend = Backend(
        models.WordLevel({word: number for number, word in enumerate(words or ())}, unk_token="a")
    )
    backend.add_special_tokens(list(added))
    found = SimpleNamespace(
        name=name,
        config=SimpleNamespace(vocab_size=rows),
        has_tokenizer=words is not None,
        tokenizer=Tokenizer(LoadedTokenizer(backend), {}),
    )
    return cast(PreparedModel, found)


@pytest.mark.parametrize("added", [(), ("<s>",)])
def test_the_same_tokens_by_the_same_ids(added: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    refuse_other_vocabulary(model("one", "abc", added), model("two", "abc", added))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "added", "message"),
    [
        ("acb", (), "token 1 of one is 'b', of two 'c': only models of one vocabulary"),
        ("a", ("<s>", "d"), "token 1 of one is 'b', of two '<s>'"),
        ("abdef", (), "token 2 of one is 'c', of two 'd'"),
    ],
)
def test_other_tokens_are_refused_by_the_first_id(words: str, added: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refuse_other_vocabulary(model("one", "abc"), model("two", words, added))


@pytest.mark.parametrize(
    ("words", "added"),
    [("ab", ()), ("abcd", ()), ("abc", ("<s>",)), (["a", "b", "c", "[PAD3]", "[PAD4]"], ())],
)
def test_rows_that_only_one_of_them_names_are_left_out(words: Sequence[str], added: Sequence[str]) -> None:
    """As an imported GGUF file, which calls rows beyond the tokenizer [PADn], and its checkpoint."""
    refuse_other_vocabulary(model("one", "abc"), model("two", words, added))
    refuse_other_vocabulary(model("two", words, added), model("one", "abc"))


def test_other_embeddings_are_refused() -> None:
    with pytest.raises(UserError, match="one has 8 tokens, two 9: only models of one vocabulary"):
        refuse_other_vocabulary(model("one", "abc"), model("two", "abc", rows=9))


def test_what_cannot_be_compared_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    refuse_other_vocabulary(model("one", "abc"), model("two"))
    assert capsys.readouterr().err == "tpiedge: two has no tokenizer: its vocabulary is not compared\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--model", "checkpoint", "--reference-model", "pack"),
            "the reference pack is a pack in q8, not in f32",
        ),
        (("--model", "pack"), "pack is a pack in q8, which cannot be its own reference in f32"),
    ],
)
def test_a_pack_that_cannot_be_the_reference_is_refused_before_anything_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: Sequence[str], message: str
) -> None:
    def prepare(*_: object) -> None:
        raise AssertionError("packs")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / MANIFEST_NAME).touch()
    monkeypatch.setattr(eval_agreement, "prepare", prepare)
    stored = SimpleNamespace(open=lambda _path: SimpleNamespace(precision=Precision.Q8))
    monkeypatch.setattr(reference, "Pack", stored)
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(agreement, flags, catch_exceptions=False)
