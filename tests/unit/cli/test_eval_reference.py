"""Models are compared where the same id is the same token."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from tpiedge.cli.eval_reference import refuse_other_vocabulary
from tpiedge.cli.prepare import PreparedModel
from tpiedge.errors import UserError
from tpiedge.model.tokenizer import Tokenizer


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
        tokenizer=Tokenizer(backend, {}),
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
        ("ab", (), "token 2 of one is 'c', of two None"),
        ("abcd", (), "token 3 of one is None, of two 'd'"),
        ("abc", ("<s>",), "token 3 of one is None, of two '<s>'"),
    ],
)
def test_other_tokens_are_refused_by_the_first_id(words: str, added: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refuse_other_vocabulary(model("one", "abc"), model("two", words, added))


def test_other_embeddings_are_refused() -> None:
    with pytest.raises(UserError, match="one has 8 tokens, two 9: only models of one vocabulary"):
        refuse_other_vocabulary(model("one", "abc"), model("two", "abc", rows=9))


def test_what_cannot_be_compared_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    refuse_other_vocabulary(model("one", "abc"), model("two"))
    assert capsys.readouterr().err == "tpiedge: two has no tokenizer: its vocabulary is not compared\n"
