import errno
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.unit.engine.test_grammars import END, Walker
from tests.unit.model.vocabularies import KINDS
from tpiedge.engine.grammars import Constraint, Grammars, await_any
from tpiedge.errors import ChildLost, GrammarRefused
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.requests import GenerationRequest, Grammar

LIMIT_S = 60.0
LETTERS = Grammar("regex", "[a-z]{9}")
PARENT = """
import sys
from dataclasses import replace
from pathlib import Path
from tpiedge.engine.grammars import Grammars
from tpiedge.wire.requests import GenerationRequest, Grammar

grammars = Grammars(Path(sys.argv[1]), 400)
for group in ("", "", "shared", "shared"):
    request = GenerationRequest("r", (1,), 9, stop_ids=(2,), grammar=Grammar("regex", "a*b" + group))
    constraint = grammars.start_compile(request, again=False, group=group)
    next(constraint.masks(shared=False))
    globals().setdefault("kept", []).append(constraint)
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _needs_llguidance() -> None:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")


@pytest.fixture
def walker(tmp_path: Path) -> Iterator[Walker]:
    KINDS["byte-level"]().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path, here=True)
    with closing(Grammars(tmp_path, len(tokenizer.vocabulary))) as grammars:
        yield Walker(tokenizer, grammars, len(tokenizer.vocabulary))


def until(constraint: Constraint, known: Callable[[], bool]) -> None:
    while not known():
        await_any([constraint], LIMIT_S)


@contextmanager
def ending(pids: Sequence[int]) -> Iterator[None]:
    with ExitStack() as files:
        opened = [os.pidfd_open(pid) for pid in pids]
        for fd in opened:
            files.callback(os.close, fd)
        yield
        for fd in opened:
            assert select.select([fd], [], [], LIMIT_S)[0], "a process outlives what it was for"


def pids_of(processes: Sequence[psutil.Process]) -> list[int]:
    return [one.pid for one in processes]


def first_process() -> psutil.Process:
    living = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    (found,) = [one for one in living if "tpiedge.engine.grammar_child" in one.cmdline()]
    return found


@pytest.mark.parametrize("killed", ["parent", "first"])
@pytest.mark.fault("P20", "no process of a grammar is left")
def test_grammar_processes_end_with_their_parent(walker: Walker, tmp_path: Path, killed: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"begun\n"
            (first,) = psutil.Process(parent.pid).children()
            grammars = first.children()
            assert len(grammars) == 3
            for one in grammars:
                one.suspend()
            if killed == "parent":
                with ending([first.pid, *pids_of(grammars)]):
                    parent.kill()
            else:
                with ending(pids_of(grammars)):
                    first.kill()
        finally:
            parent.kill()


def test_grammar_group_process_ends_with_its_last_request(walker: Walker) -> None:
    grammars = walker._grammars
    request = GenerationRequest("r", (1,), 99, stop_ids=(END,), grammar=LETTERS)
    with closing(walker.begin(Grammar("regex", "b"))) as other:
        walker.allowed(other)
        (kept,) = first_process().children()
        begun = [grammars.start_compile(request, again=False, group="g") for _ in range(16)]
        for one in begun:
            walker.allowed(one)
        (shared,) = [one for one in first_process().children() if one != kept]
        assert shared.nice() == min(19, psutil.Process().nice() + 10)
        wrong = grammars.start_compile(replace(request, answer_ids=(END,)), again=True, group="g")
        with closing(wrong), pytest.raises(GrammarRefused, match="none of the grammar's"):
            walker.allowed(wrong)
        for one in begun[:15]:
            one.accept([min(walker.allowed(one)[0])])
            walker.allowed(one)
            one.close()
        shared.suspend()
        assert shared.is_running()
        with ending([shared.pid]):
            begun[15].close()
        assert kept.is_running()
        other.accept([min(walker.allowed(other)[0])])
        assert walker.allowed(other)
        with closing(grammars.start_compile(request, again=False, group="g")) as one:
            assert walker.allowed(one)


@pytest.mark.fault("H6", "the processes of its grammar end")
def test_compiling_process_ends_with_its_request(walker: Walker) -> None:
    with closing(walker.begin(LETTERS)) as constraint:
        walker.allowed(constraint)
    first = first_process()
    constraint = walker.begin(LETTERS)
    constraint.ready()
    until_known = constraint.links()
    select.select([link.reads for link in until_known], [], [], LIMIT_S)
    compiling = first.children()
    for one in compiling:
        one.suspend()
    with ending(pids_of(compiling)):
        constraint.close()


def follow(walker: Walker, constraint: Constraint, kill: Callable[[], None]) -> list[int]:
    told: list[int] = []
    while True:
        until(constraint, constraint.known)
        (allowed,) = walker.allowed(constraint)
        if END in allowed:
            return told
        told.append(min(allowed))
        constraint.accept(told[-1:])
        if len(told) == 3:
            until(constraint, constraint.known)
            kill()


def kill_grammar() -> None:
    # The process of an earlier constraint may still be there.
    grammar = max(first_process().children(), key=lambda child: (child.create_time(), child.pid))
    with ending([grammar.pid]):
        grammar.kill()


def kill_first() -> None:
    first = first_process()
    with ending([first.pid, *pids_of(first.children(recursive=True))]):
        first.kill()


@pytest.mark.parametrize("kill", [kill_grammar, kill_first])
@pytest.mark.fault("P22", "begun again once: the same answer")
def test_answer_survives_one_kill_of_its_grammar_process(walker: Walker, kill: Callable[[], None]) -> None:
    with closing(walker.begin(LETTERS)) as constraint:
        undisturbed = follow(walker, constraint, lambda: None)
    with closing(walker.begin(LETTERS)) as constraint:
        assert follow(walker, constraint, kill) == undisturbed
        until(constraint, constraint.known)
        kill()
        with pytest.raises(ChildLost, match="was killed twice"):
            until(constraint, lambda: constraint.known() and False)


@pytest.mark.fault("P22", "begun again once: the same answer")
def test_draft_masks_are_requested_again_after_a_killed_process(walker: Walker) -> None:
    with closing(walker.begin(LETTERS)) as constraint:
        until(constraint, constraint.known)
        (first, *_) = sorted(walker.allowed(constraint)[0])
        constraint.accept([first])
        kill_grammar()
        for _ in range(2):
            constraint.forced()
        constraint.guess([first, first])
        until(constraint, constraint.known)
        assert len(list(constraint.masks(shared=False))) == 3


def test_failed_process_start_leaks_no_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    KINDS["byte-level"]().save(str(tmp_path / "tokenizer.json"))
    before = psutil.Process().num_fds()
    request = GenerationRequest("r", (1,), 9, stop_ids=(END,), grammar=LETTERS)
    kept = []  # so that nothing is closed by chance
    with closing(Grammars(tmp_path, 400)) as grammars:
        for _ in range(3):
            with pytest.raises(ChildLost, match="no room for the process of a text or a grammar") as raised:
                next(grammars.start_compile(request, again=False).masks(shared=False))
            kept.append(raised)
        assert psutil.Process().num_fds() == before
