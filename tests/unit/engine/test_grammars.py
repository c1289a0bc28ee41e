"""What grammars allow, by the process that knows, for tokenizers of every kind and vocabularies that differ."""

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

from tests.unit.model.vocabularies import KINDS
from tpiedge.engine.grammar_compiling import Compilation, CompilePlaces
from tpiedge.engine.grammar_link import FATE, GrammarLink
from tpiedge.engine.grammars import Constraint, Grammars
from tpiedge.errors import ChildLost, GrammarRefused, UserError
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
    tokenizer = Tokenizer.open(tmp_path, here=True)
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


class Process:
    """Says by hand what a process of a grammar says."""

    def __init__(self) -> None:
        session, self._link = socket.socketpair()
        watch, self._fate = socket.socketpair()
        self.link = GrammarLink(session, watch)

    def hear(self) -> tuple[bytes, bytes]:
        """The next frame."""
        head = self._link.recv(5, socket.MSG_WAITALL)
        return head[4:], self._link.recv(int.from_bytes(head[:4], "little"), socket.MSG_WAITALL)

    def say(self, letter: bytes, body: bytes = b"") -> None:
        self._link.sendall(len(body).to_bytes(4, "little") + letter + body)

    def mask(self, cost_s: float) -> None:
        self.say(b"c", int(cost_s * 1e6).to_bytes(4, "little"))
        self.say(b"m", bytes(3))

    def end(self, status: int | None = None, spent_s: float = 0.0) -> None:
        """With an exit status, negative of a signal; without one whoever was to tell it has ended, too."""
        self._link.close()
        if status is not None:
            self._fate.send(FATE.pack(status, int(spent_s * 1e6)))
        self._fate.close()

    @property
    def ended(self) -> bool:
        """Whether it is to end."""
        return bool(select.select([self._fate], [], [], 0)[0]) and not self._fate.recv(1)

    def close(self) -> None:
        self.link.close()
        self._link.close()
        self._fate.close()


class Compiling(Process):
    """The process of one grammar, which has its place at once."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.others: list[Process] = []
        self.compilation = Compilation(
            Grammar("regex", "a*"), self._fork, CompilePlaces(1), self.clock.now, again=again
        )
        self.compilation.users += 1
        assert not self.compilation.ready()
        _, asked = self.hear()
        assert json.loads(asked) == {"kind": "regex", "text": "a*", "again": again}

    def _fork(self) -> GrammarLink:
        """The first one is this; then those that are begun in its place."""
        if not self.others:
            self.others.append(self)
            return self.link
        self.others.append(Process())
        return self.others[-1].link

    def close(self) -> None:
        for one in self.others[1:]:
            one.close()
        super().close()


class Compiled(Compilation):
    """A grammar that is compiled, whose answers' processes are played by hand."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Grammar("regex", "a*"), Process, CompilePlaces(1), clock.now, again=False)  # type: ignore[arg-type]
        self.processes: list[Process] = []

    def ready(self) -> bool:
        return True

    def open(self) -> GrammarLink:
        self.processes.append(Process())
        return self.processes[-1].link


class Child:
    """Says by hand what the process of an answer says, of a model with 16 tokens."""

    def __init__(self, *, again: bool = False) -> None:
        self.clock = ManualClock()
        self.compiled = Compiled(self.clock)
        grammar = Grammar("regex", "a*")
        request = GenerationRequest("r", (1,), 99, stop_ids=(END,), grammar=grammar)
        self.constraint = Constraint(self.compiled, request, grammar, END, 16, self.clock.now, again=again)
        assert not self.constraint.ready()
        assert json.loads(self.hear()[1])["again"] == again

    @property
    def process(self) -> Process:
        return self.compiled.processes[-1]

    def hear(self) -> tuple[bytes, bytes]:
        return self.process.hear()

    def say(self, letter: bytes, body: bytes = b"") -> None:
        self.process.say(letter, body)

    def mask(self, cost_s: float) -> None:
        self.process.mask(cost_s)

    def close(self) -> None:
        self.constraint.close()
        for one in self.compiled.processes:
            one.close()


@pytest.mark.parametrize(("again", "limit_s"), [(False, 20.0), (True, 30.0)])
def test_the_time_of_a_grammar_begins_when_its_process_is_ready(again: bool, limit_s: float) -> None:
    """However long the tokenizer took; and one of which an answer has begun has more of it. A grammar that reaches no
    limit of its own in that time had no processor."""
    with closing(Compiling(again=again)) as child:
        child.clock.advance(24.9)
        assert not child.compilation.ready()
        child.say(b"r")
        assert not child.compilation.ready()
        child.clock.advance(limit_s - 0.1)
        assert not child.compilation.ready()
        child.clock.advance(0.2)
        for _ in range(2):
            with pytest.raises(ChildLost, match="this machine is too busy"):
                child.compilation.ready()
        assert child.ended


def test_a_process_that_does_not_get_ready_is_not_the_grammar_s_fault() -> None:
    with closing(Compiling()) as child:
        child.clock.advance(25.1)
        with pytest.raises(ChildLost, match="was not ready within 25 s: try again later"):
            child.compilation.ready()


OWN = [-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT, 1, 0]
FOREIGN = [-signal.SIGKILL, -signal.SIGTERM, None]


@pytest.mark.parametrize("status", OWN)
def test_a_process_that_ends_by_what_it_does_is_the_grammar_s_fault(status: int) -> None:
    with closing(Compiling()) as compiling:
        compiling.end(status)
        with pytest.raises(GrammarRefused, match="takes too much time or memory"):
            compiling.compilation.ready()
    with closing(Child()) as child:
        child.process.end(status)
        with pytest.raises(GrammarRefused, match="takes too much time or memory"):
            child.constraint.ready()


@pytest.mark.parametrize("status", FOREIGN)
def test_a_process_that_is_killed_while_it_compiles_is_begun_again_once(status: int | None) -> None:
    with closing(Compiling()) as compiling:
        compiling.end(status, 1.5)
        assert not compiling.compilation.ready()
        assert not compiling.compilation.ready()
        _, other = compiling.others
        assert json.loads(other.hear()[1])["text"] == "a*"
        other.say(b"y", bytes(4))
        assert compiling.compilation.ready()
        assert compiling.compilation.take_spent() == (0.0 if status is None else 1.5)
        other.end(status)
        with pytest.raises(ChildLost, match="was killed twice"):
            compiling.compilation.ready()
        assert compiling.compilation.failed


@pytest.mark.parametrize("status", FOREIGN)
def test_an_answer_whose_process_is_killed_goes_on_in_another_one(status: int | None) -> None:
    """From its tokens so far, and with the guesses that were asked; then it may be asked anew."""
    with closing(Child()) as child:
        child.mask(0.0)
        assert child.constraint.ready()
        child.constraint.accept([5, 6])
        child.constraint.guess([7])
        child.process.end(status)
        assert not child.constraint.known()
        assert not child.constraint.known()
        assert json.loads(child.hear()[1])["answer"] == [5, 6]
        assert child.hear() == (b"d", array("I", [7]).tobytes())
        child.mask(0.0)
        assert not child.constraint.known()
        child.say(b"d", bytes(3))
        assert child.constraint.known()
        assert len(list(child.constraint.masks(shared=True))) == 2
        child.process.end(status)
        with pytest.raises(ChildLost, match="was killed twice"):
            child.constraint.known()


def test_a_process_that_is_killed_within_a_restart_is_asked_for_it_again() -> None:
    with closing(Child(again=True)) as child:
        child.mask(0.0)
        assert child.constraint.ready()
        child.constraint.restart([5, 6, 7])
        child.process.end(-signal.SIGKILL)
        assert not child.constraint.ready()
        assert not child.constraint.ready()
        assert json.loads(child.hear()[1])["answer"] == []
        assert child.hear() == (b"b", array("I", [5, 6, 7]).tobytes())
        child.mask(0.0)
        assert not child.constraint.ready()
        child.say(b"k", (2).to_bytes(4, "little"))
        child.mask(0.0)
        assert child.constraint.ready()
        assert child.constraint.kept == 2


def test_guesses_that_were_given_up_do_not_count() -> None:
    """An answer that gave up its pages is computed anew, with other guesses, before the first were answered."""
    with closing(Child()) as child:
        child.mask(0.0)
        assert child.constraint.ready()
        child.constraint.guess([5])
        child.constraint.guess([6, 7])
        child.say(b"d", bytes(3))
        assert not child.constraint.known()
        child.say(b"d", bytes(6))
        assert len(list(child.constraint.masks(shared=True))) == 3
        child.constraint.guess([5])
        child.constraint.guess([])
        child.say(b"d", bytes(3))
        assert len(list(child.constraint.masks(shared=True))) == 1


def test_only_so_many_grammars_are_compiled_at_once() -> None:
    """In the order in which they came; one that ends, or is left, makes room."""
    played: list[Process] = []

    def fork() -> GrammarLink:
        played.append(Process())
        return played[-1].link

    clock, places = ManualClock(), CompilePlaces(2)
    every = [Compilation(Grammar("regex", "a*"), fork, places, clock.now, again=False) for _ in range(5)]
    for one in every:
        one.users += 1
        assert not one.ready()
    assert len(played) == 2
    played[1].say(b"y", bytes(4))
    assert not every[4].ready()  # which hears it, as it waits for that
    assert not every[2].ready()
    assert len(played) == 3
    every[0].leave()
    assert played[0].ended
    assert not every[4].ready()
    assert len(played) == 4
    played[2].say(b"e", b"no")
    assert not every[4].ready()
    assert not every[4].ready()
    assert len(played) == 5
    assert every[1].ready()
    with pytest.raises(GrammarRefused, match="the grammar is refused: no"):
        every[2].ready()
    for process in played:
        process.close()


def test_a_grammar_that_waits_for_its_place_loses_none_of_its_time() -> None:
    """As where an epoch ends, and all its answers go on at once: they are compiled one after the other."""
    played: list[Process] = []

    def fork() -> GrammarLink:
        played.append(Process())
        return played[-1].link

    clock, places = ManualClock(), CompilePlaces(1)
    every = [Compilation(Grammar("regex", "a*"), fork, places, clock.now, again=True) for _ in range(4)]
    for number, one in enumerate(every):
        assert not any(other.ready() for other in every[number:])
        clock.advance(20.0)
        played[number].say(b"r", bytes(4))
        played[number].say(b"y", bytes(4))
        assert one.ready()
    for process in played:
        process.close()


def steps(child: Child, cost_s: float, step_s: float, *, shared: bool, most: int = 1000) -> int:
    """How many masks of that cost there are until the grammar is refused; at most so many."""
    if not child.constraint.ready():
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
        child.say(b"m", bytes(3))
        assert child.constraint.ready()
        for _ in range(300):
            child.constraint.guess([5, 6, 7])
            child.say(b"c", (20_000).to_bytes(4, "little"))
            child.say(b"d", bytes(9))
            assert len(list(child.constraint.masks(shared=True))) == 4
            child.constraint.accept([5, 6, 7, 8])
            child.mask(0.0)
