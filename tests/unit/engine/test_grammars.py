import json
import select
import signal
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.clock import ManualClock
from tests.unit.model.vocabularies import KINDS
from tpiedge.engine.grammar_process import FATE, GrammarLink, GrammarProcess
from tpiedge.engine.grammars import Constraint, Grammars
from tpiedge.errors import ChildLost, GrammarRefused, UserError
from tpiedge.model.text_child import HEAD
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
        return self._grammars.start_compile(request, again=bool(answer))

    def allowed(self, constraint: Constraint, *, shared: bool = False) -> list[set[int]]:
        return [
            set(np.flatnonzero(np.unpackbits(mask, count=self._rows, bitorder="little")).tolist())
            for mask in constraint.masks(shared=shared)
        ]


EVERY = pytest.mark.parametrize("walker", [*KINDS, "fewer rows", "more rows"], indirect=True)


@pytest.fixture
def walker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Walker]:
    kind = getattr(request, "param", "byte-level")
    backend = KINDS[kind if kind in KINDS else "byte-level"]()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path, here=True)
    rows = len(tokenizer.vocabulary) + {"fewer rows": -40, "more rows": 77}.get(kind, 0)
    grammars = Grammars(tmp_path, rows)
    yield Walker(tokenizer, grammars, rows)
    grammars.close()


@EVERY
def test_token_masks_match_the_grammar(walker: Walker) -> None:
    with closing(walker.begin(Grammar("regex", "(ab|世)+"))) as constraint:
        first, *_ = walker.allowed(constraint)
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
            for token in range(len(walker.tokenizer.vocabulary))
            if walker.tokenizer.token_bytes(token) == b"b"
        )
        constraint.guess([one, other])
        _, between, after = walker.allowed(constraint)
        assert END not in between
        assert END in after
        constraint.accept([one, other])
        assert walker.allowed(constraint) == [after]


@EVERY
def test_forced_tokens_are_the_only_allowed_ones(walker: Walker) -> None:
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


def test_each_request_has_its_own_stop_token(walker: Walker) -> None:
    first, second = walker.begin(Grammar("regex", "a?")), walker.begin(Grammar("regex", "a?"), stop=1)
    with closing(first), closing(second):
        assert END in walker.allowed(first)[0]
        (allowed,) = walker.allowed(second)
        assert 1 in allowed
        assert END not in allowed


def test_replaying_a_long_answer_does_not_block(walker: Walker) -> None:
    one = next(token for token in range(400) if walker.tokenizer.token_bytes(token) == b"a")
    with closing(walker.begin(Grammar("regex", "a*"), [one] * 60_000)) as constraint:
        assert not constraint.ready()
        (allowed,) = walker.allowed(constraint)
        assert {one, END} <= allowed


def test_unreadable_tokenizer_refuses_grammar_requests(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    grammars = Grammars(tmp_path, 100)
    request = GenerationRequest("r", (1,), 9, stop_ids=(END,), grammar=Grammar("regex", "a"))
    why = "the model's tokenizer cannot be used with grammars"
    with (
        closing(grammars),
        closing(grammars.start_compile(request, again=False)) as constraint,
        pytest.raises(UserError, match=why),
    ):
        list(constraint.masks(shared=False))


class Process:
    """Says by hand what a process of a grammar says, to its answer number 1 where nothing else is given."""

    def __init__(self) -> None:
        session, self._link = socket.socketpair()
        watch, self._fate = socket.socketpair()
        self.link = GrammarLink(session, watch)

    def hear(self) -> tuple[bytes, bytes]:
        length, letter, _ = HEAD.unpack(self._link.recv(HEAD.size, socket.MSG_WAITALL))
        return letter, self._link.recv(length, socket.MSG_WAITALL) if length else b""

    def say(self, letter: bytes, body: bytes = b"", number: int = 1) -> None:
        self._link.sendall(HEAD.pack(len(body), letter, number) + body)

    def mask(self, cost_s: float) -> None:
        self.say(b"m", int(cost_s * 1e6).to_bytes(4, "little") + bytes(3))

    def end(self, status: int | None = None, spent_s: float = 0.0) -> None:
        self._link.close()
        if status is not None:
            self._fate.send(FATE.pack(status, int(spent_s * 1e6)))
        self._fate.close()

    @property
    def ended(self) -> bool:
        return bool(select.select([self._fate], [], [], 0)[0]) and not self._fate.recv(1)

    def close(self) -> None:
        self.link.close()
        self._link.close()
        self._fate.close()


class Child:
    """A grammar with one answer, of a model with 16 tokens, whose processes are played by hand."""

    def __init__(self, *, again: bool = False, compiled: bool = True) -> None:
        self.clock = ManualClock()
        self.processes: list[Process] = []
        grammar = Grammar("regex", "a*")
        self.grammar = GrammarProcess(grammar, self._fork, self.clock.now, again=again)
        request = GenerationRequest("r", (1,), 99, stop_ids=(END,), grammar=grammar)
        self.constraint = Constraint(self.grammar, request, (END, 16), self.clock.now, again=again)
        assert not self.constraint.ready()
        assert json.loads(self.process.hear()[1]) == {"kind": "regex", "text": "a*", "again": again}
        if compiled:
            self.compile()
            assert json.loads(self.process.hear()[1])["again"] == again

    def _fork(self) -> GrammarLink:
        self.processes.append(Process())
        return self.processes[-1].link

    def compile(self) -> None:
        self.process.say(b"y", bytes(4), 0)
        assert not self.constraint.ready()

    @property
    def process(self) -> Process:
        return self.processes[-1]

    def close(self) -> None:
        self.constraint.close()
        for one in self.processes:
            one.close()


@pytest.mark.parametrize(("again", "limit_s"), [(False, 20.0), (True, 30.0)])
def test_grammar_time_limit_starts_when_its_process_is_ready(again: bool, limit_s: float) -> None:
    with closing(Child(again=again, compiled=False)) as child:
        child.clock.advance(24.9)
        assert not child.constraint.ready()
        child.process.say(b"r", number=0)
        assert not child.constraint.ready()
        child.clock.advance(limit_s - 0.1)
        assert not child.constraint.ready()
        child.clock.advance(0.2)
        for _ in range(2):
            with pytest.raises(ChildLost, match="this machine is too busy"):
                child.constraint.ready()
        assert child.process.ended


def test_process_start_timeout_is_not_blamed_on_the_grammar() -> None:
    with closing(Child(compiled=False)) as child:
        child.clock.advance(25.1)
        with pytest.raises(ChildLost, match="was not ready within 25 s: try again later"):
            child.constraint.ready()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("status", [-signal.SIGPROF, -signal.SIGSEGV, 1, 0])
def test_crashed_grammar_process_refuses_the_grammar(status: int, compiled: bool) -> None:
    with closing(Child(compiled=compiled)) as child:
        child.process.end(status)
        with pytest.raises(GrammarRefused, match="takes too much time or memory"):
            child.constraint.ready()


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM, None])
def test_killed_grammar_process_is_replaced_once(status: int | None) -> None:
    with closing(Child()) as child:
        child.process.mask(0.0)
        assert child.constraint.ready()
        child.constraint.accept([5, 6])
        child.constraint.guess([7])
        child.process.mask(0.0)  # not taken yet when the process is gone
        child.process.end(status, 1.5)
        assert not child.constraint.known()
        assert not child.constraint.known()
        assert child.constraint.take_spent() == (0.0 if status is None else 1.5)
        assert json.loads(child.process.hear()[1])["text"] == "a*"
        child.compile()
        assert json.loads(child.process.hear()[1])["answer"] == [5, 6]
        assert child.process.hear() == (b"d", array("I", [7]).tobytes())
        child.process.mask(0.0)
        assert not child.constraint.known()
        child.process.say(b"d", bytes(4 + 3))
        assert child.constraint.known()
        assert len(list(child.constraint.masks(shared=True))) == 2
        child.process.end(status)
        with pytest.raises(ChildLost, match="was killed twice"):
            child.constraint.known()


def test_masks_of_abandoned_drafts_are_ignored() -> None:
    with closing(Child()) as child:
        child.process.mask(0.0)
        assert child.constraint.ready()
        child.constraint.guess([5])
        child.constraint.guess([6, 7])
        child.process.say(b"d", bytes(4 + 3))
        assert not child.constraint.known()
        child.process.say(b"d", bytes(4 + 6))
        assert len(list(child.constraint.masks(shared=True))) == 3
        child.constraint.guess([5])
        child.constraint.guess([])
        child.process.say(b"d", bytes(4 + 3))
        assert len(list(child.constraint.masks(shared=True))) == 1


def steps(child: Child, cost_s: float, step_s: float, *, shared: bool, most: int = 1000) -> int:
    if not child.constraint.ready():
        child.process.mask(0.0)
    list(child.constraint.masks(shared=shared))
    for number in range(most):
        child.constraint.accept([5])
        child.process.mask(cost_s)
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
def test_grammar_with_slow_masks_is_refused_beside_others(
    cost_s: float, step_s: float, shared: bool, masks: int
) -> None:
    with closing(Child()) as child:
        assert steps(child, cost_s, step_s, shared=shared) == masks
