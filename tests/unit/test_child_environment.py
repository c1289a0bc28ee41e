import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tpiedge.engine.grammars import Grammars
from tpiedge.errors import ChildLost
from tpiedge.launch.child import Child
from tpiedge.lifeline import child_environment
from tpiedge.model.template import ChatTemplate
from tpiedge.pack.process import PackRequest, run_pack_child
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision
from tpiedge.wire.requests import GenerationRequest, Grammar

SECRETS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"),
    *("TPIEDGE_WORKER_TOKEN", "TPIEDGE_MASTER_API_KEY", "MYSQL_PWD", "SSH_AUTH_SOCK"),
    "PYTHON_KEYRING_BACKEND",
)
NEEDED = (
    *("PATH", "HOME", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TPIEDGE_NATIVE"),
    "TMPDIR",
)


def test_child_environment_keeps_needed_names_without_secrets() -> None:
    found = child_environment(dict.fromkeys((*SECRETS, *NEEDED), "x"))
    assert sorted(found) == sorted(NEEDED)


def start_node(_folder: Path) -> None:
    child = Child("tpiedge.there_is_no_such_module", b"", {})
    child.stop(time.monotonic())


def start_packing(folder: Path) -> None:
    layer = BlobSpec((MatrixSpec("q", "q", 128, 64, 128),))
    spec = ModelSpec(BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),)), (layer,), BlobSpec(), {})
    with pytest.raises(KeyError):  # what it is told is no answer
        run_pack_child(PackRequest(spec, 1, Precision.F32, folder / "pack"), lambda *_: None)


def start_template(_folder: Path) -> None:
    with pytest.raises(ChildLost):  # the child answers nothing
        ChatTemplate({"default": "{{ messages }}"}, {}, wall_s=0.1).render([])


def start_grammar(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    request = GenerationRequest("r", (1,), 9, stop_ids=(2,), grammar=Grammar("regex", "a"))
    grammars = Grammars(folder, 100)
    with closing(grammars), closing(grammars.start_compile(request, again=False)) as constraint:
        assert not constraint.ready()


@pytest.mark.parametrize("start", [start_node, start_packing, start_template, start_grammar])
def test_started_processes_get_no_secrets(
    start: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    class Noted(subprocess.Popen[bytes]):
        """Reads its input, in place of what was to be started; with a link, it waits for its end."""

        def __init__(self, command: list[str], *, env: dict[str, str], **options: Any) -> None:
            given.append(env)
            linked = "tpiedge.engine.grammar_child" in command
            super().__init__(["sleep", "60"] if linked else ["cat"], env=env, **options)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    for name in SECRETS:
        monkeypatch.setenv(name, "x")
    start(tmp_path)
    assert given
    assert all(not environment.keys() & set(SECRETS) and "PATH" in environment for environment in given)
