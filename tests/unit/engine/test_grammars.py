"""What grammars allow, by the process that knows, for tokenizers of every kind and vocabularies that differ."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.unit.model.vocabularies import KINDS
from tpiedge.engine.grammars import Constraint, Grammars
from tpiedge.errors import UserError
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.requests import GenerationRequest, Grammar

END = 2


@pytest.fixture(autouse=True)
def _needs_llguidance() -> None:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")


class Walker:
    """Follows a grammar through texts."""

    def __init__(self, tokenizer: Tokenizer, grammars: Grammars, rows: int) -> None:
        self.tokenizer = tokenizer
        self._grammars = grammars
        self._rows = rows

    def begin(self, grammar: Grammar, answer: Sequence[int] = (), stop: int = END) -> Constraint:
        request = GenerationRequest(
            "r", (1,), 99, stop_ids=(stop,), answer_ids=tuple(answer), grammar=grammar
        )
        return self._grammars.begin(request)

    def allowed(self, constraint: Constraint) -> list[set[int]]:
        """Of the next position, and after each guess."""
        return [
            set(np.flatnonzero(np.unpackbits(mask, count=self._rows, bitorder="little")).tolist())
            for mask in constraint.masks()
        ]


EVERY = pytest.mark.parametrize("walker", [*KINDS, "fewer rows", "more rows"], indirect=True)


@pytest.fixture
def walker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Walker]:
    """`fewer rows`, `more rows`: of the model than its tokenizer has tokens."""
    kind = getattr(request, "param", "byte-level")
    backend = KINDS[kind if kind in KINDS else "byte-level"]()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path)
    rows = tokenizer.vocab_size + {"fewer rows": -40, "more rows": 77}.get(kind, 0)
    grammars = Grammars(tmp_path, rows)
    yield Walker(tokenizer, grammars, rows)
    grammars.close()


@EVERY
def test_allowed_tokens_are_those_whose_texts_are(walker: Walker) -> None:
    """Bytes of unfinished characters included, special tokens never; the end only where the text may end."""
    with closing(walker.begin(Grammar("regex", "(ab|世)+"))) as constraint:
        ((first, *_),) = [walker.allowed(constraint)]
        texts = {token: walker.tokenizer.token_bytes(token) or b"" for token in first}
        assert END not in first
        assert not first & walker.tokenizer.special_ids
        assert all(
            ("ab" * 9).encode().startswith(text) or ("世" * 9).encode().startswith(text)
            for text in texts.values()
        )
        assert {text[:1] for text in texts.values()} == {b"a", "世".encode()[:1]}
        one = next(token for token, text in texts.items() if text == b"a")
        other = next(
            token
            for token in range(walker.tokenizer.vocab_size)
            if walker.tokenizer.token_bytes(token) == b"b"
        )
        constraint.guess([one, other])
        _, between, after = walker.allowed(constraint)
        assert END not in between
        assert END in after
        constraint.accept([one, other])
        assert walker.allowed(constraint) == [after]


def test_a_guess_is_followed_as_far_as_it_is_allowed(walker: Walker) -> None:
    with closing(walker.begin(Grammar("regex", "[a-z]{3}"))) as constraint:
        (start,) = walker.allowed(constraint)
        one = next(token for token in start if walker.tokenizer.token_bytes(token) == b"a")
        constraint.guess([one, END, one])
        assert len(walker.allowed(constraint)) == 2
        constraint.accept([one])
        constraint.guess([one])
        _, after = walker.allowed(constraint)
    with closing(walker.begin(Grammar("regex", "[a-z]{3}"), [one, one])) as again:
        assert walker.allowed(again) == [after]


@EVERY
def test_forced_tokens_are_the_only_ones(walker: Walker) -> None:
    with closing(walker.begin(Grammar("json", json.dumps({"const": {"a name": [1, 2]}})))) as constraint:
        told = b""
        while True:
            (allowed,) = walker.allowed(constraint)
            if END in allowed:
                assert allowed == {END}
                break
            forced = constraint.forced()
            if forced:
                assert allowed == {forced[0]}
            token = min(allowed)
            told += walker.tokenizer.token_bytes(token) or b""
            constraint.accept([token])
        assert json.loads(told) == {"a name": [1, 2]}


def test_each_request_has_its_own_end(walker: Walker) -> None:
    """Whatever that of the first request was."""
    first, second = walker.begin(Grammar("regex", "a?")), walker.begin(Grammar("regex", "a?"), stop=1)
    with closing(first), closing(second):
        assert END in walker.allowed(first)[0]
        (allowed,) = walker.allowed(second)
        assert 1 in allowed
        assert END not in allowed


def test_an_answer_that_is_none_of_the_grammar_s_is_refused(walker: Walker) -> None:
    constraint = walker.begin(Grammar("regex", "b"), [END])
    with closing(constraint), pytest.raises(UserError, match="the answer so far is none of the grammar's"):
        walker.allowed(constraint)


def test_a_long_answer_so_far_holds_nobody(walker: Walker) -> None:
    """It is more than fits on the way to a process that has not begun to read."""
    one = next(token for token in range(400) if walker.tokenizer.token_bytes(token) == b"a")
    with closing(walker.begin(Grammar("regex", "a*"), [one] * 60_000)) as constraint:
        assert not constraint.ready()
        (allowed,) = walker.allowed(constraint)
        assert {one, END} <= allowed


def test_a_model_without_a_tokenizer_has_no_grammars(tmp_path: Path) -> None:
    grammars = Grammars(tmp_path, 100)
    request = GenerationRequest("r", (1,), 9, stop_ids=(END,), grammar=Grammar("regex", "a"))
    with pytest.raises(UserError, match="has no tokenizer beside its weights"):
        grammars.begin(request)


def test_a_tokenizer_that_cannot_be_read_refuses_each_request(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    grammars = Grammars(tmp_path, 100)
    request = GenerationRequest("r", (1,), 9, stop_ids=(END,), grammar=Grammar("regex", "a"))
    why = "the model's tokenizer cannot be used with grammars"
    with (
        closing(grammars),
        closing(grammars.begin(request)) as constraint,
        pytest.raises(UserError, match=why),
    ):
        list(constraint.masks())
