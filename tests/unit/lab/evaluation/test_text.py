from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.lab.eval_text import read_text, windows_of
from tpiedge.local.prepare import PreparedModel


@given(st.integers(2, 200), st.integers(2, 40), st.data())
def test_every_token_but_the_first_is_scored_once(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context - 1))
    ids = tuple(range(1000, 1000 + length))
    windows = list(windows_of(ids, context, stride))
    scored = [token for window in windows for token in window.ids[window.first :]]
    assert scored == list(ids[1:])
    for number, window in enumerate(windows):
        start = window.ids[0] - 1000
        assert window.ids == ids[start : start + len(window.ids)]
        assert 1 <= window.first < len(window.ids) <= context
        assert window.scored == len(window.ids) - window.first
        if number:
            assert window.scored <= stride
            assert window.first >= context - stride


class Letters:
    """One token for each character, after a first one that only marks the beginning if `marked`."""

    def __init__(self, marked: bool) -> None:
        self._marked = marked
        self.special_ids = frozenset({0} if marked else set())

    def encode(self, text: str) -> list[int]:
        return [0] * self._marked + [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def model(
    *,
    marked: bool = False,
    tokenizer: bool = True,
    name: str = "letters",
    vocab: int = 1000,
    positions: int = 16,
) -> PreparedModel:
    return cast(
        PreparedModel,
        SimpleNamespace(
            name=name,
            has_tokenizer=tokenizer,
            tokenizer=Letters(marked),
            config=SimpleNamespace(vocab_size=vocab, context_tokens=positions),
        ),
    )


def write(folder: Path, text: str) -> Path:
    path = folder / "text.txt"
    path.write_bytes(text.encode())
    return path


def test_documents_are_windowed_separately(tmp_path: Path) -> None:
    path = write(tmp_path, "abc\n\f  \f\fdéfg")
    found = read_text(model(), path, None, None)
    assert [window.ids for window in found.windows] == [tuple(map(ord, "abc\n")), tuple(map(ord, "défg"))]
    assert (found.documents, found.tokens, found.scored, found.context, found.stride) == (2, 8, 6, 16, 8)
    assert found.scored_bytes == 3 + 4  # without "a" and "d"
    marked = read_text(model(marked=True), path, None, None)
    assert (marked.tokens, marked.scored, marked.scored_bytes) == (10, 8, 9)
    assert found.longest == 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        (" \n\f\n", "is empty"),
        ("a", "has 1 token: give a text of 2"),
        ("a\x00€", "outside the vocab"),
    ],
)
def test_unmeasurable_texts_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        read_text(model(), write(tmp_path, text), None, None)


@pytest.mark.parametrize(
    ("context", "stride", "complaint"),
    [
        (1, None, "leaves no token to predict"),
        (17, None, "the model has 1 to 16 positions"),
        (8, 8, "1 to 7, one below --context"),
        (8, 0, "1 to 7"),
    ],
)
def test_context_and_stride_out_of_range_are_refused(
    tmp_path: Path, context: int, stride: int | None, complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        read_text(model(), write(tmp_path, "abc"), context, stride)
