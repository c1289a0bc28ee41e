"""The tools that record and replay answers: every case of the benchmark runs, and brings the given tokens."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.reference import Reference
from tpiedge.errors import UserError

TOOLS = Path(__file__).parents[2] / "tools"
TEXT = [*range(5, 25), 3, 4]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return loaded("bench_speculation")


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    return loaded("record_acceptance")


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    """One answer that copies its prompt, and one that does not."""
    answers = {"copies": TEXT, "differs": [7 * i % 23 + 5 for i in range(22)]}
    paths = [tmp_path / f"{name}.json" for name in answers]
    for path, answer in zip(paths, answers.values(), strict=True):
        path.write_text(json.dumps({"prompt_ids": TEXT, "answer_ids": answer}))
    return paths


@pytest.mark.parametrize("case", ["resident", "streaming", "link-1ms"])
def test_every_case_runs(
    case: str,
    bench: ModuleType,
    traces: list[Path],
    references: Callable[[str], Reference],
    packs: Callable[[Reference], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pack = packs(references("llama-gqa-odd"))
    words = [str(pack), "--cases", case, "--repeats", "1", "--threads", "1", "--json", "--traces"]
    monkeypatch.setattr("sys.argv", ["bench_speculation.py", *words, *map(str, traces)])
    assert bench.main() == 0
    copies, differs = json.loads(capsys.readouterr().out)
    assert (copies["case"], copies["trace"], copies["tokens"]) == (case, "copies", len(TEXT))
    assert copies["tokens_per_step"] >= 1
    assert differs["tokens_per_step"] >= 1
    assert differs["speedup"]["median"] > 0


def test_the_given_tokens_come_with_drafts_and_without(
    bench: ModuleType, traces: list[Path], references: Callable[[str], Reference], packs: Callable[..., Path]
) -> None:
    pack = packs(references("llama-gqa-odd"))
    found = [bench.Trace.read(path, 1000) for path in traces]
    arguments = bench._parser().parse_args([str(pack), "--threads", "1"])
    for speculate in (0, 15):
        with bench._replay(bench.CASES[0], found, speculate, arguments) as replay:
            for trace in found:
                _, steps = replay.answer(trace.name)
                assert replay.tokens == list(trace.answer_ids)
                assert steps == len(trace.answer_ids) if speculate == 0 else steps <= len(trace.answer_ids)


def test_what_is_no_trace_is_refused(bench: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=r"other\.json"):
        bench.Trace.read(path, 10)


@pytest.mark.parametrize(("name", "steps"), [("rewrite", 40), ("story", 170)])
def test_the_recorded_answers(name: str, steps: int, recording: ModuleType) -> None:
    """They are small patterns: every vocabulary has their ids. One is copied, the other one is not."""
    content = json.loads((TOOLS / "traces" / f"{name}.json").read_text())
    prompt, answer = content["prompt_ids"], content["answer_ids"]
    assert max(*prompt, *answer) < 1000
    assert len(answer) > 100
    found, accepted, drafted = recording.guessed(prompt, answer)
    assert found <= steps
    assert accepted <= drafted
    assert (accepted > len(answer) / 2) == (name == "rewrite")


def test_ids_are_renumbered_by_their_first_occurrence(recording: ModuleType) -> None:
    task = recording.TASKS[0]
    content = recording.trace("folder/model.gguf", task, (900, 7, 900), (7, 30_000))
    assert content["prompt_ids"] == [0, 1, 0]
    assert content["answer_ids"] == [1, 2]
    assert content["model"] == "model"
