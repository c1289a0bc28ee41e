"""What grammars allow, by the process that knows, for tokenizers of every kind and vocabularies that differ."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.unit.model.vocabularies import KINDS
from tpiedge.engine.grammars import Constraint, Grammars
from tpiedge.errors import GrammarRefused, UserError
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.testing.clock import ManualClock
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
        return self._grammars.begin(request, again=bool(answer))

    def allowed(self, constraint: Constraint, *, shared: bool = False) -> list[set[int]]:
        """Of the next position, and after each guess."""
        return [
            set(np.flatnonzero(np.unpackbits(mask, count=self._rows, bitorder="little")).tolist())
            for mask in constraint.masks(shared=shared)
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
    with pytest.raises(GrammarRefused, match="has no tokenizer beside its weights"):
        grammars.begin(request, again=False)


def test_a_tokenizer_that_cannot_be_read_refuses_each_request(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    grammars = Grammars(tmp_path, 100)
    request = GenerationRequest("r", (1,), 9, stop_ids=(END,), grammar=Grammar("regex", "a"))
    why = "the model's tokenizer cannot be used with grammars"
    with (
        closing(grammars),
        closing(grammars.begin(request, again=False)) as constraint,
        pytest.raises(UserError, match=why),
    ):
        list(constraint.masks(shared=False))


class Child:
    """Says by hand what the process of a grammar says, of a model with 16 tokens."""

    def __init__(self, *, again: bool = False) -> None:
        ours, self._link = socket.socketpair()
        self.clock = ManualClock()
        grammar = Grammar("regex", "a*")
        request = GenerationRequest("r", (1,), 99, stop_ids=(END,), grammar=grammar)
        self.constraint = Constraint(ours, request, grammar, END, 16, self.clock.now, again=again)
        _, asked = self.hear()
        assert json.loads(asked)["again"] == again

    def hear(self) -> tuple[bytes, bytes]:
        """The next frame."""
        head = self._link.recv(5, socket.MSG_WAITALL)
        return head[4:], self._link.recv(int.from_bytes(head[:4], "little"), socket.MSG_WAITALL)

    def say(self, letter: bytes, body: bytes = b"") -> None:
        self._link.sendall(len(body).to_bytes(4, "little") + letter + body)

    def mask(self, cost_s: float) -> None:
        self.say(b"c", int(cost_s * 1e6).to_bytes(4, "little"))
        self.say(b"m", bytes(3))

    def hang_up(self) -> None:
        self._link.close()

    def close(self) -> None:
        self.constraint.close()
        self._link.close()


@pytest.mark.parametrize(("again", "limit_s"), [(False, 20.0), (True, 30.0)])
def test_the_time_of_a_grammar_begins_when_its_process_is_ready(again: bool, limit_s: float) -> None:
    """However long the tokenizer took; and one of which an answer has begun has more of it."""
    with closing(Child(again=again)) as child:
        child.clock.advance(24.9)
        assert not child.constraint.ready()
        child.say(b"r")
        assert not child.constraint.ready()
        child.clock.advance(limit_s - 0.1)
        assert not child.constraint.ready()
        child.clock.advance(0.2)
        with pytest.raises(GrammarRefused, match="takes too much time or memory"):
            child.constraint.ready()


def test_a_process_that_does_not_get_ready_is_not_the_grammar_s_fault() -> None:
    with closing(Child()) as child:
        child.clock.advance(25.1)
        with pytest.raises(UserError, match="was not ready within 25 s: try again later") as raised:
            child.constraint.ready()
        assert not isinstance(raised.value, GrammarRefused)


def steps(child: Child, cost_s: float, step_s: float, *, shared: bool, most: int = 1000) -> int:
    """How many masks of that cost there are until the grammar is refused; at most so many."""
    child.say(b"r")
    child.say(b"m", bytes(3))
    list(child.constraint.masks(shared=shared))
    for number in range(most):
        child.constraint.accept([5])
        child.mask(cost_s)
        child.clock.advance(step_s)
        try:
            list(child.constraint.masks(shared=shared))
        except GrammarRefused:
            return number
    return most


@pytest.mark.parametrize(
    ("cost_s", "step_s", "shared", "masks"),
    [
        (0.005, 0.01, True, 1000),  # each may take so much
        (0.0151, 0.01, True, 99),  # what is more than that adds up to a second
        (0.9, 0.01, True, 1),
        (0.9, 0.01, False, 1000),
        (0.05, 0.5, True, 1000),  # a slow machine has slow steps
        (0.15, 0.5, True, 10),
    ],
)
def test_what_masks_may_cost_beside_others(cost_s: float, step_s: float, shared: bool, masks: int) -> None:
    with closing(Child()) as child:
        assert steps(child, cost_s, step_s, shared=shared) == masks


def test_what_a_mask_took_too_much_is_made_up_for() -> None:
    with closing(Child()) as child:
        assert steps(child, 0.9, 0.01, shared=True, most=1) == 1
        assert steps(child, 0.0, 0.01, shared=True, most=200) == 200
        assert steps(child, 0.9, 0.01, shared=True, most=1) == 1


def test_guesses_cost_a_mask_each() -> None:
    with closing(Child()) as child:
        child.say(b"r")
        child.say(b"m", bytes(3))
        for _ in range(300):
            child.constraint.guess([5, 6, 7])
            child.say(b"c", (20_000).to_bytes(4, "little"))
            child.say(b"d", bytes(9))
            assert len(list(child.constraint.masks(shared=True))) == 4
            child.constraint.accept([5, 6, 7, 8])
            child.mask(0.0)
