"""The text that a model is measured with: every token but a document's first is scored once, with enough before it."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.lab.evaluation.text import read_text, windows_of
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
            context_tokens=positions,
            has_tokenizer=tokenizer,
            tokenizer=Letters(marked),
            config=SimpleNamespace(vocab_size=vocab),
        ),
    )


def write(folder: Path, text: str) -> Path:
    path = folder / "text.txt"
    path.write_bytes(text.encode())
    return path


def test_documents_are_read_by_themselves(tmp_path: Path) -> None:
    path = write(tmp_path, "abc\n\f  \f\fdéfg")
    found = read_text(model(), path, None, None)
    assert [window.ids for window in found.windows] == [tuple(map(ord, "abc\n")), tuple(map(ord, "défg"))]
    assert (found.documents, found.tokens, found.scored, found.context, found.stride) == (2, 8, 6, 16, 8)
    assert found.scored_bytes == 3 + 4  # without "a" and "d"
    marked = read_text(model(marked=True), path, None, None)
    assert (marked.tokens, marked.scored, marked.scored_bytes) == (10, 8, 9)
    assert found.longest == 4


def test_a_document_of_one_token_is_left_out(tmp_path: Path) -> None:
    found = read_text(model(), write(tmp_path, "a\fbc"), None, None)
    assert [window.ids for window in found.windows] == [(98, 99)]
    assert found.scored_bytes == 1


def test_a_long_document_is_read_in_windows(tmp_path: Path) -> None:
    found = read_text(model(), write(tmp_path, "x" * 30), 10, 4)
    assert [(len(window.ids), window.first) for window in found.windows] == [(10, 1), *[(10, 6)] * 5]
    assert found.scored == 29


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        (" \n\f\n", "is empty"),
        ("a", "has 1 token: give a text of 2"),
        ("a\x00€", "outside the vocab"),
    ],
)
def test_texts_that_cannot_be_measured(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        read_text(model(), write(tmp_path, text), None, None)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes("né".encode("latin-1"))
    with pytest.raises(UserError, match=r"not text in UTF-8 \(byte 1\)"):
        read_text(model(), path, None, None)
    with pytest.raises(UserError, match=r"cannot read .*nowhere: No such file"):
        read_text(model(), tmp_path / "nowhere", None, None)
    with pytest.raises(UserError, match="--text FILE is missing"):
        read_text(model(), None, None, None)
    with pytest.raises(UserError, match="no tokenizer"):
        read_text(model(tokenizer=False), write(tmp_path, "abc"), None, None)


@pytest.mark.parametrize(
    ("context", "stride", "complaint"),
    [
        (1, None, "leaves no token to predict"),
        (17, None, "the model has 1 to 16 positions"),
        (8, 8, "1 to 7, one below --context"),
        (8, 0, "1 to 7"),
    ],
)
def test_windows_out_of_range(tmp_path: Path, context: int, stride: int | None, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        read_text(model(), write(tmp_path, "abc"), context, stride)


def test_windows_fit_the_reference(tmp_path: Path) -> None:
    path, short = write(tmp_path, "x" * 30), model(name="short", positions=10)
    found = read_text(model(), path, None, None, short)
    assert (found.context, found.longest) == (10, 10)
    assert read_text(model(), path, None, None, model(positions=99)).context == 16
    assert read_text(model(), path, 10, None, short).context == 10
    with pytest.raises(UserError, match="--context 11 is out of range: the reference short has 1 to 10"):
        read_text(model(), path, 11, None, short)
    with pytest.raises(UserError, match="the model has 1 to 10 positions"):
        read_text(short, path, 11, None, model())


def test_the_demo_model_brings_its_own() -> None:
    found = read_text(model(name="demo", vocab=1 << 20), None, None, None)
    assert found.documents == 64
    assert found.scored > 20_000  # characters, here
